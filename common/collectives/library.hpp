#pragma once

#include "common/messages/group.hpp"

/// @file
/// The MPI library's own collectives, to compare with. Its messages are its own: what it is handed is counted as sent.

namespace rankwise {

/// MPI_Reduce_scatter: segment r of Partition(n, N) is complete on rank r.
/// @cost  scratch of a segment.
void library_reduce_scatter_sum(const Tensor& values, Group& group);
/// MPI_Allgatherv.
void library_all_gather(const Tensor& values, Group& group);
/// MPI_Allreduce, in place.
void library_all_reduce_sum(const Tensor& values, Group& group);
/// MPI_Bcast.
void library_broadcast(const Tensor& values, int root, Group& group);
/// MPI_Reduce.
void library_reduce_sum(const Tensor& values, int root, Group& group);
/// MPI_Barrier.
void library_barrier(Group& group);

}  // namespace rankwise
