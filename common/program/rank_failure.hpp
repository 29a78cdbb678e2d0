#pragma once

#include <mpi.h>
#include <span>
#include <string>

#include "common/base/error.hpp"

/// @file
/// Ranks that die while the others live on: User-Level Failure Mitigation (ULFM) of MPI libraries, and its use in
/// this project.
///
/// When MPI says that a rank has died, the rank that learns it revokes all communicators, so that no rank waits for the dead
/// one or for a rank that has given up: each of their calls fails, in every thread, and throws RankFailure. Then the living
/// ranks shrink the communicator of the job.
/// @source  Bland et al. 2013, "Post-failure recovery of MPI communication capability", doi:10.1177/1094342013488238.

namespace rankwise {

/// A rank of the job has died, or another rank has learnt that one has.
class RankFailure : public Error {
 public:
  /// @param message  describes the failure.
  /// @param agreed   true if agree_on() threw it, so that all ranks know.
  /// @param where    the line of the call.
  RankFailure(const std::string& message, bool agreed, SourceLocation where)
      : Error(message, where), agreed_(agreed)
  {
  }

  /// True if all living ranks know of it.
  bool agreed() const { return agreed_; }

 private:
  bool agreed_;
};

/// True if ranks can survive the death of others: the MPI library can, and the launcher was asked to let them.
bool can_survive();
/// The reason why they cannot, and what to do, as the remedy of a UserError.
std::string why_not_survive();

/// True if an MPI call returned @p code because a rank has died or a communicator was revoked.
bool is_rank_failure(int code);

/// Revokes @p communicator too when a rank has died.
void revoke_on_failure(MPI_Comm communicator);
/// Does so no more, before it is freed.
void forget_communicator(MPI_Comm communicator);
/// Revokes all these communicators.
void revoke_all();

/// Returns when messages between ranks of @p communicator are complete, so that MPI_Waitall() frees them at once.
///
/// If a rank dies meanwhile they are never freed: Open MPI 5.0 ends the job when it finds that a send has failed whose
/// request is freed ("Send error after request freed").
/// @throws RankFailure  then.
void wait_or_fail(std::span<MPI_Request> requests, MPI_Comm communicator);
/// Waits for messages that were started, after their communicator was revoked, and leaves their requests alone. Messages between
/// living ranks that have both begun are complete within a moment, and their memory can be freed then; those with a dead rank,
/// or with one that has given up, never are, and touch no memory. So it waits for 50 ms at most.
void wait_for_failure(std::span<MPI_Request> requests);

/// The bits that all living ranks of the job pass, the same on all of them even if some die meanwhile, and if none of them
/// gives up. Ranks that have not died make equally many of these calls.
/// @throws RankFailure  if a rank gives up.
unsigned agree_on(unsigned bits);
/// Takes part in the others' agree_on(), whenever it comes, and makes it fail.
void give_up_agreement();

/// The ranks of @p communicator that are alive, in their order, as a communicator of their own. They make this call together.
/// @throws Error  if MPI fails.
MPI_Comm survivors_of(MPI_Comm communicator);

}  // namespace rankwise
