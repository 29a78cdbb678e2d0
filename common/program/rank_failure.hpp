#pragma once

#include <mpi.h>
#include <string>

#include "common/base/error.hpp"

/// @file
/// Ranks that die while the others live on: what MPI libraries with User-Level Failure Mitigation (ULFM) offer, and how this
/// project uses it.
///
/// When MPI says that a rank has died, the rank that learns it revokes all communicators, so that no rank waits for the dead
/// one or for a rank that has given up: each of their calls fails, in every thread, and throws RankFailure. Then the living
/// ranks shrink the communicator of the job.
/// @source  Bland et al. 2013, "Post-failure recovery of MPI communication capability", doi:10.1177/1094342013488238.

namespace rankwise {

/// A rank of the job has died, or another rank has learnt that one has.
class RankFailure : public Error {
 public:
  /// @param message  what was being done.
  /// @param agreed   whether all_agree() threw it, so that all ranks know.
  /// @param where    the line of the call.
  RankFailure(const std::string& message, bool agreed, SourceLocation where)
      : Error(message, where), agreed_(agreed)
  {
  }

  /// Whether all living ranks know of it.
  bool agreed() const { return agreed_; }

 private:
  bool agreed_;
};

/// Whether ranks can survive the death of others: the MPI library can, and the launcher was asked to let them.
bool can_survive();
/// Why not, and what to do, as the remedy of a UserError.
std::string why_not_survive();

/// Whether an MPI call returned @p code because a rank has died or a communicator was revoked.
bool is_rank_failure(int code);

/// Revokes @p communicator too when a rank has died.
void revoke_on_failure(MPI_Comm communicator);
/// Does so no more, before it is freed.
void forget_communicator(MPI_Comm communicator);
/// Revokes all these communicators.
void revoke_all();

/// Waits for a message that was started and will fail, because its communicator was revoked. Its memory can be freed then.
void wait_for_failure(MPI_Request& request);

/// Whether all living ranks of @p communicator pass true: the same answer on all of them, even if some die meanwhile. Also
/// works on a revoked communicator.
bool all_agree(MPI_Comm communicator, bool own);

/// The ranks of @p communicator that are alive, in their order, as a communicator of their own. They make this call together.
/// @throws Error  if MPI fails.
MPI_Comm survivors_of(MPI_Comm communicator);

}  // namespace rankwise
