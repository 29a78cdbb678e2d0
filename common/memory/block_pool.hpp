#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

/// @file
/// A pool that reuses freed blocks of memory.

namespace rankwise {

/// Pool of large memory blocks. A freed block is kept and reused for the next request of the same size. The system
/// clears memory that is new to a process, page by page on first touch; where buffers are allocated and freed in
/// every step, as gradients and gathered parameters are, that can take as long as the work on them.
///
/// The pool holds at most an eighth more than the peak in use: before it makes a new block it frees kept ones, the
/// oldest first, until that limit holds. So the process grows hardly larger than without a pool, but it does not
/// shrink. The eighth is for sizes that alternate, small blocks while large ones are free and the other way round:
/// without it each would be freed for the other in every step.
///
///     in use    kept    peak
///     40 + 20             60
///     40          20      60    the block of 20 is freed, and kept
///     40 + 20             60    a request for 20 reuses it
///     40          20      60
///     40 + 30             70    a request for 30 needs a new block; 40 + 30 + 20 exceed 70 + 70 / 8: 20 freed
///
/// Several threads may use it at once.
class BlockPool {
 public:
  /// @param make  allocates a new block of the given number of bytes, or throws.
  /// @param free  returns a block to the system.
  BlockPool(std::function<void*(std::int64_t)> make, std::function<void(void*)> free);
  /// Frees the kept blocks; all blocks must have been returned.
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// A block of undefined content: the most recently freed one of the same size, else a new one.
  /// @throws  whatever `make` throws; the pool is then unchanged.
  void* take(std::int64_t bytes);
  /// Takes back a block that take(@p bytes) returned.
  void give_back(void* block, std::int64_t bytes) noexcept;

 private:
  struct Kept {
    void* block;
    std::int64_t bytes;
  };

  std::function<void*(std::int64_t)> make_;
  std::function<void(void*)> free_;
  std::mutex mutex_;
  std::vector<Kept> kept_;  // in the order in which they were returned
  std::int64_t kept_bytes_ = 0, used_bytes_ = 0, most_bytes_ = 0;
};

}  // namespace rankwise
