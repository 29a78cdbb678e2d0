#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

/// @file
/// Memory that is dealt out again.

namespace rankwise {

/// Large blocks of memory, each of which is kept when it is given back and dealt out again to who next asks for as many
/// bytes. The system clears memory that a process has not had before, page by page as it is touched: where buffers come and
/// go in every step, as gradients and gathered parameters do, that can take as long as the work on them.
///
/// At most an eighth more is held than was in use at once: before a new block is made those that were given back first are
/// freed, until what is in use and what is kept are no more than that. So the process grows hardly larger than if nothing
/// were kept, but it stays that large. The eighth is for sizes that take turns, small blocks when large ones are given back
/// and the other way round: without it each would be freed for the other in every step.
///
///     in use    kept    most
///     40 + 20             60
///     40          20      60    20 are given back
///     40 + 20             60    who asks for 20 gets them
///     40          20      60
///     40 + 30             70    who asks for 30 gets a new block; 40 + 30 + 20 are more than 70 + 70 / 8: the 20 are freed
///
/// Several threads may use it at once.
class BlockPool {
 public:
  /// @param make  gives a new block of so many bytes, or throws.
  /// @param free  takes one away.
  BlockPool(std::function<void*(std::int64_t)> make, std::function<void(void*)> free);
  /// Frees what is kept; all blocks have been given back.
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// A block that only the caller has, of undefined content: of those of the same size the one that was given back last, else
  /// a new one.
  /// @throws  what `make` does; nothing is in use by that.
  void* take(std::int64_t bytes);
  /// Keeps a block that take(@p bytes) gave.
  void give_back(void* block, std::int64_t bytes) noexcept;

 private:
  struct Kept {
    void* block;
    std::int64_t bytes;
  };

  std::function<void*(std::int64_t)> make_;
  std::function<void(void*)> free_;
  std::mutex mutex_;
  std::vector<Kept> kept_;  // in the order in which they were given back
  std::int64_t kept_bytes_ = 0, used_bytes_ = 0, most_bytes_ = 0;
};

}  // namespace rankwise
