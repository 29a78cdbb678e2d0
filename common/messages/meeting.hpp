#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

/// @file
/// A place in shared memory where the ranks of a machine wait for each other.

namespace rankwise {

/// Where N processes meet, in memory that all of them share, round after round.
///
/// Who comes before the last looks for a moment whether all have come (spin()), and then sleeps until the last one wakes it.
class Meeting {
 public:
  /// Returns when all have called it with this round; what they wrote to memory before can be read after.
  /// @param ranks      N, the same for all.
  /// @param round      1 in the first call of each rank, then 2, ...; modulo 2^32.
  /// @param meanwhile  called about once a millisecond by who sleeps long.
  void meet(int ranks, std::uint32_t round, const std::function<void()>& meanwhile);

 private:
  using Word = std::atomic<std::uint32_t>;
  static_assert(Word::is_always_lock_free && sizeof(Word) == sizeof(std::uint32_t));

  alignas(64) Word arrived_{0};   // ranks, in this round
  alignas(64) Word round_{0};     // that all ranks have reached
  alignas(64) Word sleepers_{0};  // ranks that may have to be woken
};

}  // namespace rankwise
