#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/collectives/cost.hpp"
#include "common/messages/group.hpp"

/// @file
/// Time of a message: measurements, and a line fitted to them.

namespace rankwise {

/// Measured time of a message from one rank to another.
struct MessageTime {
  std::int64_t bytes;  ///< size of the message
  double time_s;       ///< half of a round trip
};

/// Sends messages of several sizes back and forth between ranks 0 and 1, 2 and 3, and so on. All pairs send at the
/// same time, as ranks do in a collective. If N is odd, the last rank only waits.
/// @param group  N >= 2 ranks; all of them make this call.
/// @return  for each size the median of several round trips, averaged over the pairs; the same on all ranks.
/// @cost    about 10 ms.
std::vector<MessageTime> ping_pong(Group& group);

/// The median of measured times.
double median(std::vector<double> times);

/// A line fitted to measured times, and its error.
struct Fit {
  AlphaBeta line;       ///< t = alpha + beta b
  double residual = 0;  ///< root mean square of (line - measured) / measured
};

/// The line with the least sum of squared relative errors. Absolute errors would let the longest message decide
/// alone.
/// @param times  at least two sizes.
Fit fit_line(std::span<const MessageTime> times);

}  // namespace rankwise
