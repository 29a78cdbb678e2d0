#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/collectives/cost.hpp"
#include "common/messages/group.hpp"

/// @file
/// How long a message takes: measured, and the line through it.

namespace rankwise {

/// The time that a message of so many bytes takes from one rank to another.
struct MessageTime {
  std::int64_t bytes;  ///< of the message
  double time_s;       ///< half of a round trip
};

/// Sends messages of several sizes to and fro between the ranks 0 and 1, 2 and 3, ...: all pairs at once, since in a
/// collective all ranks send at once too. A last rank without partner waits.
/// @param group  N >= 2 ranks; all of them make this call.
/// @return  for each size the median of several round trips, the mean over the pairs; the same on all ranks.
/// @cost    some 10 ms.
std::vector<MessageTime> ping_pong(Group& group);

/// A line through measured times, and how far it is from them.
struct Fit {
  AlphaBeta line;       ///< t = alpha + beta b
  double residual = 0;  ///< root mean square of (line - measured) / measured
};

/// The line with the least sum of squared relative errors; absolute ones would let the longest message decide alone.
/// @param times  at least two sizes.
Fit fit_line(std::span<const MessageTime> times);

}  // namespace rankwise
