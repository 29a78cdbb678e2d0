#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

/// @file
/// A barrier in shared memory for the ranks of a machine.

namespace rankwise {

/// A reusable barrier of N processes, in memory that they share.
///
/// A process that arrives early spins for a moment (spin()), and then sleeps until the last to arrive wakes it.
class Meeting {
 public:
  /// Returns when all processes have called it for this round; memory written before the call can be read after it.
  /// @param ranks      N, the same in all processes.
  /// @param round      1 in the first call of each rank, then 2, ...; modulo 2^32.
  /// @param meanwhile  called about once a millisecond during a long sleep.
  void meet(int ranks, std::uint32_t round, const std::function<void()>& meanwhile);

 private:
  using Word = std::atomic<std::uint32_t>;
  static_assert(Word::is_always_lock_free && sizeof(Word) == sizeof(std::uint32_t));

  alignas(64) Word arrived_{0};   // number of ranks that have arrived in this round
  alignas(64) Word round_{0};     // last round that all ranks have completed
  alignas(64) Word sleepers_{0};  // ranks that may have to be woken
};

}  // namespace rankwise
