#pragma once

#include "common/messages/group.hpp"

/// @file
/// The barrier: no rank continues before all ranks have arrived.

namespace rankwise {

/// Returns when all ranks have called it. In the step of distance d = 1, 2, 4, ... rank r notifies rank r + d that
/// it and the d - 1 ranks before it have arrived (ranks modulo N).
///
/// N = 3    distance 1              distance 2
///          0 -> 1, 1 -> 2, 2 -> 0  0 -> 2, 1 -> 0, 2 -> 1
///
/// @param group  the N >= 1 ranks that take part; all of them make this call.
/// @cost     log2 N messages of one byte per rank, rounded up.
/// @source   Hensgen, Finkel and Manber 1988, doi:10.1007/BF01379320.
void dissemination_barrier(Group& group);

}  // namespace rankwise
