#pragma once

#include <functional>

#include "common/program/session.hpp"

/// @file
/// One rank after the other: for what only one of them may do at a time.

namespace rankwise {

/// Calls @p work on rank 0, then on rank 1, and so on; all ranks make this call, and it returns when the last is done.
/// What a rank wrote to a file is there for the next to read.
/// @param session  the ranks.
/// @param work     what one rank does, without messages.
/// @failure  an exception out of @p work leaves this call; the others wait until abort_job() ends them.
/// @cost     N messages of no bytes one after the other, and a barrier.
void in_turn(const Session& session, const std::function<void()>& work);

}  // namespace rankwise
