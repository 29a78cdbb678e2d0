#pragma once

#include <vector>

#include "common/base/partition.hpp"
#include "common/messages/group.hpp"

/// @file
/// Reduce-scatter and all-gather on a ring: each rank talks to its two neighbours only, and every link carries the same.

namespace rankwise {

/// A rank's share of a vector: pieces of it, which do not overlap. The plain share is one shard of a Partition.
using Share = std::vector<Range>;

/// The plain shares: shard r of Partition(n, N) for rank r.
std::vector<Share> shards_of(std::int64_t n, int ranks);

/// The most bytes that one message of a ring has; longer pieces are sent in several, so that a rank adds one while the
/// next is under way.
inline constexpr std::int64_t ring_message_bytes = 256 << 10;
/// How many messages are under way to a rank at a time.
inline constexpr std::int64_t ring_messages = 4;

/// Leaves on each rank the finished sum of its own share.
///
/// Step k (k = 0 .. N-2): rank r passes share r-k-1 to rank r+1 and adds what arrives from rank r-1 to its own share
/// r-k-2 (numbers modulo N).
///
/// N = 3    step 0          step 1          after
/// rank 0   sends 2 -> 1    sends 1 -> 1    share 0 is complete
/// rank 1   sends 0 -> 2    sends 2 -> 2    share 1 is complete
/// rank 2   sends 1 -> 0    sends 0 -> 0    share 2 is complete
///
/// @param values  (n) any type that can be added, the same n on all ranks. On return only the own share is meaningful;
///                the rest holds partial sums.
/// @param shares  who owns what: N shares, the same on all ranks.
/// @param group   the N >= 1 ranks that take part; all of them make this call.
/// @cost     sends all shares but the own: n (N-1)/N elements a rank, in N-1 steps; scratch of four messages.
/// @failure  an error of a message ends the whole job with rank, file and line.
/// @source   Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002.
void ring_reduce_scatter_sum(const Tensor& values, const std::vector<Share>& shares, Group& group);

/// Copies each rank's share to all ranks.
///
/// Step k (k = 0 .. N-2): rank r passes share r-k to rank r+1; what arrives from rank r-1 is share r-k-1.
///
/// N = 3    step 0          step 1          after
/// rank 0   sends 0 -> 1    sends 2 -> 1    all shares are here
/// rank 1   sends 1 -> 2    sends 0 -> 2    all shares are here
/// rank 2   sends 2 -> 0    sends 1 -> 0    all shares are here
///
/// @param values  (n) any type, the same n on all ranks; the own share is read.
/// @param shares  as for ring_reduce_scatter_sum().
/// @param group   as for ring_reduce_scatter_sum().
/// @cost     sends all shares but that of rank r+1: n (N-1)/N elements a rank, in N-1 steps; no scratch.
/// @source   as for ring_reduce_scatter_sum().
void ring_all_gather(const Tensor& values, const std::vector<Share>& shares, Group& group);

}  // namespace rankwise
