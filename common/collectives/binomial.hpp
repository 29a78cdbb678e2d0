#pragma once

#include "common/messages/group.hpp"

/// @file
/// Collectives along a binomial tree: log2 N steps, with twice as many ranks taking part in each.

namespace rankwise {

/// Copies the root's @p values to all ranks.
///
/// Ranks are numbered from the root: v = (rank - root) modulo N. In the step of distance d = 1, 2, 4, ... every
/// rank v < d, which already has the values, sends them to rank v + d.
///
/// N = 5    distance 1    distance 2            distance 4
///          0 -> 1        0 -> 2, 1 -> 3        0 -> 4
///
/// @param values  (n) any type, the same n on all ranks.
/// @param root    0 <= root < N.
/// @param group   the N >= 1 ranks that take part; all of them make this call.
/// @cost     log2 N steps, rounded up; the root sends n elements in each. No scratch.
/// @source   Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521, section 3.
void binomial_broadcast(const Tensor& values, int root, Group& group);

/// Leaves the sum of @p values on the root: the tree of binomial_broadcast(), from the leaves to the root.
///
/// In the step of distance d = 1, 2, 4, ... every rank v that is an odd multiple of d sends its sum to rank v - d,
/// which adds it to its own.
///
/// N = 5    distance 1        distance 2    distance 4
///          1 -> 0, 3 -> 2    2 -> 0        4 -> 0
///
/// @param values  (n) any type that can be added; holds partial sums afterwards, except on the root.
/// @param root    0 <= root < N.
/// @param group   as for binomial_broadcast().
/// @cost     log2 N steps, rounded up; every rank but the root sends n elements once. Scratch of n elements.
/// @source   as for binomial_broadcast().
void binomial_reduce_sum(const Tensor& values, int root, Group& group);

/// Leaves the sum of shard r on rank r: binomial_reduce_sum() to rank 0, which then sends each rank its shard.
/// @cost     that of the reduction; rank 0 also sends n (N-1)/N elements in N-1 messages.
void tree_reduce_scatter_sum(const Tensor& values, Group& group);

/// Copies shard q from rank q to all ranks: rank 0 receives them all, then binomial_broadcast().
/// @cost     that of the broadcast; every rank but rank 0 also sends its shard.
void tree_all_gather(const Tensor& values, Group& group);

}  // namespace rankwise
