#pragma once

#include <vector>

#include "common/messages/group.hpp"
#include "lessons/frame/instruments/fit.hpp"

/// @file
/// Times of messages over the transport of a group.

namespace rankwise {

/// Sends messages of several sizes back and forth between ranks 0 and 1, 2 and 3, and so on. All pairs send at the
/// same time, as ranks do in a collective. If N is odd, the last rank only waits.
/// @param group  N >= 2 ranks; all of them make this call.
/// @return  for each size the median of several round trips, averaged over the pairs; the same on all ranks.
/// @cost    about 10 ms.
std::vector<MessageTime> ping_pong(Group& group);

}  // namespace rankwise
