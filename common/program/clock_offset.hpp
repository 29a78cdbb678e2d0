#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <nlohmann/json_fwd.hpp>

#include "common/base/clock.hpp"
#include "common/program/session.hpp"

/// @file
/// Wall clocks of all ranks, related to rank 0's.

namespace rankwise {

/// Offset of this rank's clock from rank 0's at one moment.
struct ClockOffset {
  std::int64_t at_ns = 0;      ///< the moment, on this rank's clock
  std::int64_t offset_ns = 0;  ///< nanoseconds to add to this rank's clock to get rank 0's
  std::int64_t error_ns = 0;   ///< bound on the error of the offset: half of the shortest round trip; 0 on rank 0
};

/// Measures the offset; all ranks make this call. Each asks rank 0 for its time again and again, and the answer that came back
/// fastest counts: it was given between question and return, in the middle if both ways take equally long.
/// @param now  this rank's clock, in nanoseconds.
/// @source  Cristian 1989, doi:10.1007/BF01784024.
ClockOffset measure_clock(const Session& session, const std::function<std::int64_t()>& now = event_clock_ns);

/// This rank's clock, corrected to rank 0's by one measurement or by two, between which clocks drift evenly. A difference that is
/// no larger than the error of its measurement is not corrected: on one machine there is one clock.
class AlignedClock {
 public:
  /// @param begin  measured at the start of the run, if it was.
  /// @param end    measured at its end.
  AlignedClock(const std::optional<ClockOffset>& begin, const ClockOffset& end);

  /// Rank 0's time at a time of this rank.
  std::int64_t operator()(std::int64_t time_ns) const;
  /// The measurement: `offset_us`, `error_us` (the residual), `drift_us` (from the start to the end of the run) and
  /// `corrected`, true if times are changed.
  nlohmann::json json() const;

 private:
  ClockOffset best_;  // the measurement with the smaller error
  std::int64_t error_ns_ = 0, measured_drift_ns_ = 0, drift_ns_ = 0, offset_ns_ = 0, span_ns_ = 1;
};

}  // namespace rankwise
