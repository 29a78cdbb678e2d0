#pragma once

#include <mpi.h>
#include <vector>

#include "common/program/session.hpp"

/// @file
/// An MPI communicator that frees itself.

namespace rankwise {

/// An MPI communicator: some ranks of the job, whose messages are separate from those of other communicators. MPI
/// errors are returned as codes.
///
/// All its ranks create and destroy it together. During stack unwinding it is not freed, because the other ranks
/// might not take part.
class Communicator {
 public:
  /// No ranks.
  Communicator() = default;
  ~Communicator();
  Communicator(Communicator&& other) noexcept;             ///< leaves @p other without ranks
  Communicator& operator=(Communicator&& other) noexcept;  ///< frees the communicator held before

  /// All ranks of the job; in a rehearsal, those of the job that is rehearsed.
  static Communicator world();
  /// The ranks of this communicator that pass the same @p color, ordered by @p key; all its ranks make this call.
  /// Error in a rehearsal, where no rank knows what the others pass.
  Communicator split(int color, int key) const;
  /// Some ranks of this communicator, this one among them, in this order. All its ranks make this call, those with a
  /// rank in common with the same ranks.
  Communicator among(const std::vector<int>& ranks) const;
  /// A communicator of the same ranks, with messages of its own; all of them make this call.
  Communicator duplicate() const;
  /// The ranks of this communicator that run on the same machine.
  Communicator split_by_machine() const;

  /// MPI's handle; none in a rehearsal.
  MPI_Comm handle() const { return handle_; }
  /// True if it has no ranks.
  bool empty() const { return ranks_ == 0; }
  /// This rank, 0 <= rank < ranks.
  int rank() const { return rank_; }
  /// N.
  int ranks() const { return ranks_; }
  /// Rank in the job of each of its ranks.
  std::vector<int> ranks_in_job() const;

 private:
  explicit Communicator(MPI_Comm handle);
  Communicator(std::vector<int> rehearsed, int rank);

  MPI_Comm handle_ = MPI_COMM_NULL;
  int rank_ = 0;
  int ranks_ = 0;
  int exceptions_ = 0;          // in flight at construction
  std::vector<int> rehearsed_;  // its ranks in the job, in a rehearsal
};

}  // namespace rankwise
