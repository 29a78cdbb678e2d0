#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

/// @file
/// Waits of threads and ranks for each other: they spin briefly, then sleep.
///
/// A thread that spins occupies a core that the thread it waits for may need; with as many threads as cores one
/// other busy process is enough for that. A thread that sleeps at once pays the wake-up latency, some tens of
/// microseconds, at every short wait. So a wait spins for about as long as a wake-up takes, and then sleeps: it
/// costs at most about twice as much as the better of the two, and frees the core.
///
/// sched_yield() is no alternative: beside a process that computes, the core is lost for that process's whole time
/// slice, milliseconds, while a short sleep ends on time.

namespace rankwise {

/// Time that waits spin before they sleep, set by RANKWISE_WAITS. Policies other than the default exist for
/// measurements (scripts/bench/bench.py).
enum class WaitPolicy : std::uint8_t {
  brief,    ///< spin for spin_time, then sleep; the default
  active,   ///< spin until the wait is over
  passive,  ///< sleep at once
};

/// The policy of this process.
/// @throws UserError  when RANKWISE_WAITS is set to anything but the name of a policy.
WaitPolicy wait_policy();

/// Applies the policy to this process; called before MPI starts. It applies to waits inside MPI because Open MPI
/// calls sched_yield() between two polls, whatever the launcher configured, and this program replaces that function
/// by a wait's pause (wait.cpp). For other libraries see common/messages/watchdog/mpi_waits.hpp. Sleeps of the calling
/// thread and of threads that it creates end on time (Linux would add 50 us by default). OpenMP threads follow the policy
/// from the start of the program (wait.cpp).
/// @throws UserError  as wait_policy().
void prepare_waits();

/// Time that a wait spins before it sleeps: about as long as a wake-up takes.
inline constexpr std::chrono::nanoseconds spin_time = std::chrono::microseconds(20);
/// Longest nap: long enough that polling costs little, short enough that one nap adds little to a long wait.
inline constexpr std::chrono::nanoseconds longest_nap = std::chrono::microseconds(200);
/// A nap is at most 1 / nap_part of the time waited so far, which bounds by how much a nap can prolong the wait.
inline constexpr int nap_part = 8;
/// A poll that takes longer than this has made progress: MPI transfers messages while it is polled.
inline constexpr std::chrono::nanoseconds idle_look = std::chrono::microseconds(10);

/// Clock and sleep functions of waits. It is never destroyed: threads may wait until the process ends.
class WaitClock {
 public:
  /// Time since a fixed but arbitrary moment.
  virtual std::chrono::nanoseconds now() = 0;
  /// Pause between two polls: almost nothing, or a yield to another rank if there are more ranks than cores.
  virtual void pause() = 0;
  /// Sleeps for @p time, or a little longer.
  virtual void sleep(std::chrono::nanoseconds time) = 0;
  /// Time that a wait spins before it sleeps.
  virtual std::chrono::nanoseconds spins() = 0;

 protected:
  ~WaitClock() = default;
};

/// The system's clock, with the wait_policy(); with the brief one, if there is none of the name that is set.
WaitClock& wait_clock();

/// One wait in a loop: `for (Wait wait; !holds();) wait.pause();`
///
/// A poll that makes progress restarts the wait, since more may follow at once.
class Wait {
 public:
  /// Starts the wait.
  explicit Wait(WaitClock& clock = wait_clock()) : clock_(clock), begin_(clock.now()), looks_since_(begin_) {}

  /// Pauses before the next poll: almost nothing during spin_time, then naps.
  void pause()
  {
    const auto now = clock_.now();
    if (now - looks_since_ > idle_look) begin_ = now;
    if (const auto waited = now - begin_; waited < clock_.spins())
      clock_.pause();
    else
      clock_.sleep(std::min(waited / nap_part, longest_nap));
    looks_since_ = clock_.now();
  }

 private:
  WaitClock& clock_;
  std::chrono::nanoseconds begin_, looks_since_;
};

/// Returns when @p holds() is true: spins briefly, then naps between polls. For conditions without a wake-up.
template <class Condition>
void spin_then_nap(Condition&& holds, WaitClock& clock = wait_clock())
{
  for (Wait wait(clock); !holds();) wait.pause();
}

/// Spins briefly, and returns true if @p holds() became true. For conditions with a wake-up.
/// @param holds  called at least once.
template <class Condition>
bool spin(Condition&& holds, WaitClock& clock = wait_clock())
{
  if (holds()) return true;
  for (const auto begin = clock.now(), end = clock.spins(); clock.now() - begin < end;) {
    clock.pause();
    if (holds()) return true;
  }
  return false;
}

}  // namespace rankwise
