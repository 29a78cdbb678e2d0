#pragma once

#include <vector>

#include "common/base/partition.hpp"
#include "common/messages/group.hpp"

/// @file
/// Reduce-scatter and all-gather on a ring: each rank talks to its two neighbours only, and all links carry the
/// same number of bytes.

namespace rankwise {

/// A rank's shard of a vector, as a list of ranges that do not overlap; usually one shard of a Partition.
using Share = std::vector<Range>;

/// The usual shards: shard r of Partition(n, N) for rank r.
std::vector<Share> shards_of(std::int64_t n, int ranks);

/// Maximum bytes of one message on a ring; longer ranges are sent as several messages, so that a rank adds one
/// while it receives the next.
inline constexpr std::int64_t ring_message_bytes = 256 << 10;
/// Number of messages in flight to a rank at a time.
inline constexpr std::int64_t ring_messages = 4;

/// Leaves on each rank the finished sum of its own shard.
///
/// Step k (k = 0 .. N-2): rank r sends shard r-k-1 to rank r+1, and adds what it receives from rank r-1 to its
/// values of shard r-k-2 (numbers modulo N).
///
/// N = 3    step 0          step 1          after
/// rank 0   sends 2 -> 1    sends 1 -> 1    shard 0 is complete
/// rank 1   sends 0 -> 2    sends 2 -> 2    shard 1 is complete
/// rank 2   sends 1 -> 0    sends 0 -> 0    shard 2 is complete
///
/// @param values  (n) any type that can be added, the same n on all ranks. On return only the rank's own shard is
///                valid; the rest holds partial sums.
/// @param shares  the shard of each of the N ranks, the same list on all ranks.
/// @param group   the N >= 1 ranks that take part; all of them make this call.
/// @cost     sends all shards but its own: n (N-1)/N elements per rank, in N-1 steps; scratch of four messages.
/// @failure  a communication error ends the whole job with rank, file and line.
/// @source   Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002.
void ring_reduce_scatter_sum(const Tensor& values, const std::vector<Share>& shares, Group& group);

/// Copies each rank's shard to all ranks.
///
/// Step k (k = 0 .. N-2): rank r sends shard r-k to rank r+1 and receives shard r-k-1 from rank r-1.
///
/// N = 3    step 0          step 1          after
/// rank 0   sends 0 -> 1    sends 2 -> 1    has all shards
/// rank 1   sends 1 -> 2    sends 0 -> 2    has all shards
/// rank 2   sends 2 -> 0    sends 1 -> 0    has all shards
///
/// @param values  (n) any type, the same n on all ranks; each rank's own shard is the input.
/// @param shares  as for ring_reduce_scatter_sum().
/// @param group   as for ring_reduce_scatter_sum().
/// @cost     sends all shards but that of rank r+1: n (N-1)/N elements per rank, in N-1 steps; no scratch.
/// @source   as for ring_reduce_scatter_sum().
void ring_all_gather(const Tensor& values, const std::vector<Share>& shares, Group& group);

}  // namespace rankwise
