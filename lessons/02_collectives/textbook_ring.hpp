#pragma once

#include <cstdint>

#include "common/collectives/cost.hpp"
#include "common/messages/group.hpp"

/// @file
/// All-reduce around a ring, as in a textbook: the first collective to read.

namespace rankwise {

/// Replaces @p values by their sum over the ranks; all ranks end with the same bits.
///
/// The vector is cut into N shards. In each step a rank sends one shard to the next rank and receives one from the
/// previous rank, simultaneously. In the first N-1 steps (reduce-scatter) it adds its own values to what it
/// receives: a shard starts at the rank after its owner, collects a term at each rank, and is complete when it
/// reaches its owner. In the other N-1 steps (all-gather) the complete shards go around the ring and every rank
/// keeps a copy. "1 (0+2)" is shard 1, so far the sum of ranks 0 and 2.
///
/// N = 3    step 0            step 1              step 2              step 3
/// rank 0   sends 2 (0) -> 1  sends 1 (0+2) -> 1  sends 0 (all) -> 1  sends 2 (all) -> 1
/// rank 1   sends 0 (1) -> 2  sends 2 (0+1) -> 2  sends 1 (all) -> 2  sends 0 (all) -> 2
/// rank 2   sends 1 (2) -> 0  sends 0 (1+2) -> 0  sends 2 (all) -> 0  sends 1 (all) -> 0
///
/// ring_reduce_scatter_sum() and ring_all_gather() send the same number of bytes and give the same bits. They send
/// a shard in pieces: one piece is added while the next is in flight, and the scratch does not grow with the
/// vector.
///
/// @param values  (n) of any type that can be added, the same n on all ranks.
/// @param group   the N >= 1 ranks that take part; all of them make this call.
/// @cost     2 (N-1) messages per rank, each of about S/N of the vector's S bytes, and scratch of one shard. Time:
///           2 (N-1) alpha + 2 (N-1)/N beta S. Exact numbers: textbook_ring_traffic().
/// @failure  a message that fails ends the whole job with rank, file and line.
/// @source   Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002.
void textbook_ring_all_reduce_sum(const Tensor& values, Group& group);

/// Messages and bytes that one rank sends in textbook_ring_all_reduce_sum(): all shards but its own, then all but
/// the next rank's.
/// @param n      elements, >= 0; an empty shard is not sent.
/// @param type   of the elements.
/// @param ranks  N >= 1.
/// @param rank   0 <= rank < N.
Traffic textbook_ring_traffic(std::int64_t n, DType type, int ranks, int rank);

/// Bytes of scratch in textbook_ring_all_reduce_sum(): the largest shard that one rank receives in the
/// reduce-scatter. It receives all shards but the previous rank's.
/// Parameters as for textbook_ring_traffic().
std::int64_t textbook_ring_scratch(std::int64_t n, DType type, int ranks, int rank);

}  // namespace rankwise
