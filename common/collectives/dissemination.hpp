#pragma once

#include "common/messages/group.hpp"

/// @file
/// The barrier: nobody goes on before everybody has come.

namespace rankwise {

/// Returns when all ranks have called it. In the step of distance d = 1, 2, 4, ... rank r tells rank r + d that it and
/// the d - 1 ranks before it have come (numbers modulo N).
///
/// N = 3    distance 1              distance 2
///          0 -> 1, 1 -> 2, 2 -> 0  0 -> 2, 1 -> 0, 2 -> 1
///
/// @param group  the N >= 1 ranks that take part; all of them make this call.
/// @cost     log2 N messages of one byte a rank, rounded up.
/// @source   Hensgen, Finkel and Manber 1988, doi:10.1007/BF01379320.
void dissemination_barrier(Group& group);

}  // namespace rankwise
