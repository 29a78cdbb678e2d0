#pragma once

#include <chrono>
#include <cstdint>

/// @file
/// The clock of trace events, and a stopwatch.

namespace rankwise {

/// Nanoseconds since the Unix epoch, for the events of a trace. The process has one such clock, set at the first
/// call and monotonic from then on.
std::int64_t event_clock_ns();

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
