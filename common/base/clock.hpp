#pragma once

#include <chrono>
#include <cstdint>

/// @file
/// What time it is, and how long something took.

namespace rankwise {

/// Nanoseconds since the Unix epoch, for the events of a trace. One clock for a whole process, which is set at its first
/// call and never goes back.
std::int64_t event_clock_ns();

/// Seconds since it was made.
class Stopwatch {
 public:
  /// Seconds of wall time since construction.
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

}  // namespace rankwise
