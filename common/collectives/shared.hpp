#pragma once

#include "common/base/partition.hpp"
#include "common/messages/group.hpp"

/// @file
/// Collectives inside a node: ranks read each other's memory, and nothing is sent.
///
/// Values that lie in the group's shared memory (Group::often_reduced()) on all ranks, at the same place of the
/// same buffer, are read where they are. Others go through areas of shared memory, block by block: a block is
/// small enough to stay in the caches. Sums are made in the order of tree_sum(), each element by one rank, and
/// stored; bf16 is rounded once.
///
/// N = 3     sums up shard    from                        and puts it
/// rank 0    0                  its own values, 1's, 2's    where 0, 1 and 2 have shard 0
/// rank 1    1                  0's, its own, 2's           where 0, 1 and 2 have shard 1
/// rank 2    2                  0's, 1's, its own           where 0, 1 and 2 have shard 2
///
/// All functions: @p values (n) of any type on each rank of a group that has shared memory; all ranks make the
/// call. Bytes of other ranks' memory that a rank reads are counted as read, none as sent. What another rank puts
/// into this rank's values counts as read by this rank: it makes no difference to the count where the values lie.
/// s is the number of elements of the own shard of Partition(n, N).

namespace rankwise {

/// Up to this many bytes all-reduce has every rank sum up everything: that takes one barrier instead of two.
inline constexpr std::int64_t shared_whole_bytes = 16 << 10;

/// As reduce_scatter_sum(): shard r of Partition(n, N) is complete on rank r.
/// @cost  reads (N-1) s elements.
void shared_reduce_scatter_sum(const Tensor& values, Group& group);
/// As all_gather().
/// @cost  reads n - s elements.
void shared_all_gather(const Tensor& values, Group& group);
/// As all_reduce_sum().
/// @cost  reads (N-1) s + n - s elements, which is 2 n (N-1)/N when N divides n; up to shared_whole_bytes (N-1) n.
void shared_all_reduce_sum(const Tensor& values, Group& group);
/// As broadcast().
/// @cost  every rank but the root reads n elements.
void shared_broadcast(const Tensor& values, int root, Group& group);
/// As reduce_sum().
/// @cost  reads (N-1) s elements, and the root n - s more.
void shared_reduce_sum(const Tensor& values, int root, Group& group);

}  // namespace rankwise
