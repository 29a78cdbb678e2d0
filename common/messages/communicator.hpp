#pragma once

#include <mpi.h>
#include <vector>

#include "common/program/session.hpp"

/// @file
/// An MPI communicator that frees itself.

namespace rankwise {

/// Some ranks of the job, with a space of messages of their own. Errors of MPI come back as codes.
///
/// All its ranks make and destroy it together. While an exception is on its way out it is not freed: the others might
/// not be there.
class Communicator {
 public:
  /// No ranks.
  Communicator() = default;
  ~Communicator();
  Communicator(Communicator&& other) noexcept;             ///< leaves @p other without ranks
  Communicator& operator=(Communicator&& other) noexcept;  ///< frees what was here before

  /// All ranks of the job.
  static Communicator world();
  /// The ranks of this one that give the same @p color, ordered by @p key; all ranks of this one make the call.
  Communicator split(int color, int key) const;
  /// The ranks of this one that run on the same machine.
  Communicator split_by_machine() const;

  /// For calls to MPI.
  MPI_Comm handle() const { return handle_; }
  /// Whether there are any ranks.
  bool empty() const { return handle_ == MPI_COMM_NULL; }
  /// This rank, 0 <= rank < ranks.
  int rank() const { return rank_; }
  /// N.
  int ranks() const { return ranks_; }
  /// The number that each of its ranks has in the job.
  std::vector<int> ranks_in_job() const;

 private:
  explicit Communicator(MPI_Comm handle);

  MPI_Comm handle_ = MPI_COMM_NULL;
  int rank_ = 0;
  int ranks_ = 0;
  int exceptions_ = 0;  // that were on their way when it was made
};

}  // namespace rankwise
