#pragma once

#include <cstdint>
#include <mpi.h>
#include <vector>

/// @file
/// Questions about the ranks of a communicator, and about their messages.

namespace rankwise {

/// Number of ranks N of a communicator.
int ranks_of(MPI_Comm comm);

/// This rank of a communicator, 0 <= r < N.
int rank_in(MPI_Comm comm);

/// Number of messages that the program has sent by calls of MPI since its start, to each rank of the job.
std::vector<std::int64_t> messages_sent();

}  // namespace rankwise
