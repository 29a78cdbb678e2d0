#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

/// @file
/// How threads and ranks wait for each other: they look for a moment, then give their core away.
///
/// Whoever waits in a loop keeps a core busy that the thread it waits for may need; with as many threads as cores one other
/// busy process is enough. Whoever sleeps at once pays for being woken, some tens of microseconds, at every short wait. So
/// a wait looks for about as long as waking up takes, and then sleeps: it costs at most about twice what the better of the
/// two would have cost, and the core is free.
///
/// To give the core away by the system's sched_yield() is no third way: beside a process that computes it is gone for that
/// process's whole time slice, milliseconds, while a short sleep ends when it should.

namespace rankwise {

/// What waits do before they sleep, as RANKWISE_WAITS says. It is there to measure the other two (scripts/bench/bench.py).
enum class WaitPolicy : std::uint8_t {
  brief,    ///< they look for spin_time, unless the variable says otherwise
  active,   ///< they look until it is over
  passive,  ///< they sleep at once
};

/// The policy of this process.
/// @throws UserError  when RANKWISE_WAITS is neither unset nor the name of one.
WaitPolicy wait_policy();

/// Makes this process wait in that way, before it starts MPI. Waits of MPI do so because Open MPI calls sched_yield() between
/// two looks, whatever the launcher told it, and here that is a wait's pause (wait.cpp). Sleeps of the calling thread, and of
/// those that it makes, end on time (Linux would add 50 us). Threads of OpenMP wait in that way from the start of the program
/// on (wait.cpp).
/// @throws UserError  as wait_policy().
void prepare_waits();

/// For how long a wait looks before it sleeps: about as long as waking up takes.
inline constexpr std::chrono::nanoseconds spin_time = std::chrono::microseconds(20);
/// The longest nap. Beside a wait that is longer than its naps what is lost by one is little, and so is what looking costs.
inline constexpr std::chrono::nanoseconds longest_nap = std::chrono::microseconds(200);
/// A nap is at most this part of the time waited so far: by so much a wait may be longer than it had to be.
inline constexpr int nap_part = 8;
/// A look that takes longer has done something: MPI moves messages while it is asked for them.
inline constexpr std::chrono::nanoseconds idle_look = std::chrono::microseconds(10);

/// Time as a wait sees it. It needs no destructor: threads may wait until the process ends.
class WaitClock {
 public:
  /// Time since some moment.
  virtual std::chrono::nanoseconds now() = 0;
  /// What is done between two looks: next to nothing, or another rank goes first where there are more ranks than cores.
  virtual void pause() = 0;
  /// Gives the core away for so long, or a little longer.
  virtual void sleep(std::chrono::nanoseconds time) = 0;
  /// For how long a wait looks before it sleeps.
  virtual std::chrono::nanoseconds spins() = 0;

 protected:
  ~WaitClock() = default;
};

/// The clock of the system, whose waits follow wait_policy().
WaitClock& wait_clock();

/// One wait in a loop: `for (Wait wait; !holds();) wait.pause();`
///
/// A look that does something begins the wait anew, since more may follow at once.
class Wait {
 public:
  /// Begins now.
  explicit Wait(WaitClock& clock = wait_clock()) : clock_(clock), begin_(clock.now()), looks_since_(begin_) {}

  /// Lets time pass before the next look: next to nothing for spin_time, then naps.
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

/// Returns when @p holds() is true: looks for a moment, then naps between looks. For what nobody can be woken by.
template <class Condition>
void spin_then_nap(Condition&& holds, WaitClock& clock = wait_clock())
{
  for (Wait wait(clock); !holds();) wait.pause();
}

/// Looks for a moment whether @p holds() is true; whether it was. For what one can sleep at, and be woken.
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
