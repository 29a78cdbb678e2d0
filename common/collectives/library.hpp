#pragma once

#include "common/collectives/pairwise.hpp"
#include "common/messages/group.hpp"

/// @file
/// The library's own collectives, for comparison: those of MPI, or of NCCL where it carries the messages. Their
/// individual messages are not visible, so the bytes passed to them are counted as sent. For MPI, GPU data is
/// copied to the host and back.

namespace rankwise {

/// MPI_Reduce_scatter: shard r of Partition(n, N) is complete on rank r.
/// @cost  scratch of a shard.
void library_reduce_scatter_sum(const Tensor& values, Group& group);
/// MPI_Allgatherv.
void library_all_gather(const Tensor& values, Group& group);
/// MPI_Allreduce, in place.
void library_all_reduce_sum(const Tensor& values, Group& group);
/// MPI_Bcast.
void library_broadcast(const Tensor& values, int root, Group& group);
/// MPI_Reduce.
void library_reduce_sum(const Tensor& values, int root, Group& group);
/// MPI_Alltoall; over NCCL the messages of all blocks, started at once.
void library_all_to_all(const Tensor& sent, const Tensor& received, Group& group);
/// MPI_Alltoallv; over NCCL as library_all_to_all(). The blocks are those of pairwise_all_to_all().
void library_all_to_all_v(const Tensor& sent, const Blocks& to, const Tensor& received, const Blocks& from,
                          Group& group);
/// MPI_Barrier.
void library_barrier(Group& group);

}  // namespace rankwise
