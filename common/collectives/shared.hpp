#pragma once

#include "common/base/partition.hpp"
#include "common/messages/group.hpp"

/// @file
/// Collectives inside a node: ranks read each other's memory, and no messages are sent.
///
/// Values that are in the group's shared memory (Group::often_reduced()) on all ranks, at the same offset of the
/// same buffer, are read in place. Other values are copied through staging areas in shared memory, in blocks small
/// enough to stay in the caches. Each element is summed by one rank in the order of tree_sum(); bf16 is rounded
/// once.
///
/// N = 3     sums shard    of the values of ranks    and stores it
/// rank 0    0             0, 1 and 2                in shard 0 of ranks 0, 1 and 2
/// rank 1    1             0, 1 and 2                in shard 1 of ranks 0, 1 and 2
/// rank 2    2             0, 1 and 2                in shard 2 of ranks 0, 1 and 2
///
/// For all functions: `values` has n elements of any type on each rank of a group that has shared memory; all ranks
/// make the call. Bytes that a rank reads from other ranks' memory are counted as read, none as sent. Bytes that
/// another rank writes to this rank's values count as read by this rank, so the count does not depend on where the
/// values are stored. s is the number of elements of the rank's own shard of Partition(n, N).

namespace rankwise {

/// Up to this many bytes every rank computes the whole sum of an all-reduce: that takes one barrier instead of two.
inline constexpr std::int64_t shared_whole_bytes = 16 << 10;

/// reduce_scatter_sum() in shared memory: shard r of Partition(n, N) is complete on rank r.
/// @cost  reads (N-1) s elements.
void shared_reduce_scatter_sum(const Tensor& values, Group& group);
/// all_gather() in shared memory.
/// @cost  reads n - s elements.
void shared_all_gather(const Tensor& values, Group& group);
/// all_reduce_sum() in shared memory.
/// @cost  reads (N-1) s + n - s elements, which is 2 n (N-1)/N when N divides n; up to shared_whole_bytes (N-1) n.
void shared_all_reduce_sum(const Tensor& values, Group& group);
/// broadcast() in shared memory.
/// @cost  every rank but the root reads n elements.
void shared_broadcast(const Tensor& values, int root, Group& group);
/// reduce_sum() in shared memory.
/// @cost  reads (N-1) s elements, and the root n - s more.
void shared_reduce_sum(const Tensor& values, int root, Group& group);

}  // namespace rankwise
