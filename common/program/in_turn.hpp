#pragma once

#include <functional>

#include "common/program/session.hpp"

/// @file
/// Runs work on one rank after the other.

namespace rankwise {

/// Calls @p work on rank 0, then on rank 1, and so on; all ranks make this call, and it returns when the last rank
/// is done. Each rank can read what earlier ranks wrote to files.
/// @param session  the ranks.
/// @param work     one rank's work; it sends no messages.
/// @failure  an exception from @p work is passed to the caller; the other ranks wait until abort_job() ends them.
/// @cost     N barriers.
void in_turn(const Session& session, const std::function<void()>& work);

}  // namespace rankwise
