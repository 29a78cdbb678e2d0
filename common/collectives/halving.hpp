#pragma once

#include "common/base/partition.hpp"
#include "common/messages/group.hpp"

/// @file
/// Reduce-scatter by recursive halving and all-gather by recursive doubling, neighbours first.
///
/// Neighbours add first (distance 1, then 2, then 4), so the sum over ranks forms the upper levels of the tree of
/// tree_sum(): if N is a power of two, the result has the bits of one rank that adds everything in that order. The
/// textbook algorithm begins with distance N/2, which is a different tree. The drawback is that the data that a
/// rank keeps is not contiguous: after the first step rank r has the shards of its own parity. They are packed for
/// sending.

namespace rankwise {

/// The largest power of two that is at most N: P.
int power_below(int N);

/// Leaves on each rank the finished sum of shard r of Partition(n, N).
///
/// N = 4     start      distance 1             distance 2
/// rank 0    0 1 2 3    sends 1 3, keeps 0 2   sends 2, keeps 0
/// rank 1    0 1 2 3    sends 0 2, keeps 1 3   sends 3, keeps 1
/// rank 2    0 1 2 3    sends 1 3, keeps 0 2   sends 0, keeps 2
/// rank 3    0 1 2 3    sends 0 2, keeps 1 3   sends 1, keeps 3
///
/// If N is not a power of two, let P be the largest power of two below it. Rank P + i first sends all its values to
/// rank i, which acts for both (shards i and P + i), and receives shard P + i at the end.
///
/// @param values  (n) any type that can be added, the same n on all ranks. On return only shard r is valid.
/// @param group   the N >= 1 ranks that take part; all of them make this call.
/// @cost     sends n (N-1)/N elements per rank in log2 N messages, for N a power of two; scratch of n elements.
/// @failure  a communication error ends the whole job with rank, file and line.
/// @source   Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521, section 4.
void halving_reduce_scatter_sum(const Tensor& values, Group& group);

/// Copies shard q of Partition(n, N) from rank q to all ranks: the steps of halving in reverse.
///
/// N = 4     start   distance 2        distance 1
/// rank 0    0       sends 0, has 0 2  sends 0 2, has 0 1 2 3
/// rank 1    1       sends 1, has 1 3  sends 1 3, has 0 1 2 3
///
/// @cost     sends n (N-1)/N elements per rank in log2 N messages, for N a power of two; scratch of n elements.
/// @source   as for halving_reduce_scatter_sum().
void doubling_all_gather(const Tensor& values, Group& group);

/// Vectors of up to this many bytes are summed whole by doubling_all_reduce_sum(): halving and doubling would save
/// bytes, but their twice as many steps would take longer.
inline constexpr std::int64_t doubling_bytes = 16 << 10;

/// Replaces @p values by their sum over the ranks: at distance 1, 2, 4, ... pairs of ranks exchange all their
/// values and add. The same tree as halving and doubling, hence the same bits.
/// @cost     sends n log2 N elements per rank in log2 N messages, for N a power of two; scratch of n elements.
/// @source   as for halving_reduce_scatter_sum(), section 4.
void doubling_all_reduce_sum(const Tensor& values, Group& group);

}  // namespace rankwise
