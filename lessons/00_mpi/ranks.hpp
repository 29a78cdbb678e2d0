#pragma once

#include <cstdint>
#include <mpi.h>
#include <string>
#include <vector>

/// @file
/// Questions about the ranks of a communicator.

namespace rankwise {

/// Number of ranks N of a communicator.
int ranks_of(MPI_Comm comm);

/// This rank of a communicator, 0 <= r < N.
int rank_in(MPI_Comm comm);

/// A line of each rank, in the order of the ranks. All ranks make this call.
/// @param own   this rank's line.
/// @return  N lines on rank 0, none on the others.
std::vector<std::string> lines_of_ranks(const std::string& own, MPI_Comm comm);

/// The numbers of each rank, in the order of the ranks. All ranks make this call.
/// @param own   this rank's numbers, as many on each rank.
/// @return  N rows on rank 0, none on the others.
std::vector<std::vector<std::int64_t>> rows_of_ranks(const std::vector<std::int64_t>& own, MPI_Comm comm);

/// Logical AND of @p holds over all ranks, which make this call together.
bool on_all(bool holds, MPI_Comm comm);

/// Number of messages that the program has sent by calls of MPI since its start, to each rank of the job.
std::vector<std::int64_t> messages_sent();

}  // namespace rankwise
