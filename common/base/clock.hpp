#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

/// @file
/// The clock of trace events, and a stopwatch.

namespace rankwise {

/// Nanoseconds since the Unix epoch, for the events of a trace. The process has one such clock, set at the first
/// call and monotonic from then on.
std::int64_t event_clock_ns();

/// The time of an event, on both clocks.
struct EventTime {
  std::int64_t wall_ns = 0;     ///< time of event_clock_ns()
  std::int64_t virtual_ps = 0;  ///< time of the virtual clock for the thread that asks; 0 without one

  /// The two times since @p begin.
  EventTime operator-(const EventTime& begin) const
  {
    return {wall_ns - begin.wall_ns, virtual_ps - begin.virtual_ps};
  }
};

/// The time now.
EventTime event_time();

/// From now on event_time() asks this virtual clock; null: none. Called while no other thread records events.
void follow_virtual_clock(std::function<std::int64_t()> now_ps);

/// Measures wall time from its construction.
class Stopwatch {
 public:
  /// Seconds of wall time since construction.
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

}  // namespace rankwise
