#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/collectives/cost.hpp"

/// @file
/// Time of a message as a line in its bytes: latency and bandwidth, fitted to measurements.

namespace rankwise {

/// Measured time of a message from one rank to another.
struct MessageTime {
  std::int64_t bytes;  ///< size of the message
  double time_s;       ///< half of a round trip
};

/// The median of measured times; of an even number the larger of the two in the middle.
double median(std::vector<double> times);

/// A line fitted to measured times, and its error.
struct Fit {
  AlphaBeta line;       ///< t = alpha + beta b
  double residual = 0;  ///< root mean square of (line - measured) / measured
};

/// The line with the least sum of squared relative errors, and neither latency nor time per byte negative. Absolute
/// errors would let the longest message decide alone.
/// @param times  at least two sizes.
Fit fit_line(std::span<const MessageTime> times);

/// The bandwidth of a fitted line as text, "5.27 GB/s". Times that do not grow with the bytes have no such limit: "at least"
/// the rate of the fastest message then.
std::string describe_bandwidth(const AlphaBeta& line, std::span<const MessageTime> times);

}  // namespace rankwise
