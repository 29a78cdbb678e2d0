#pragma once

#include <cstdint>

#include "common/collectives/cost.hpp"
#include "common/messages/group.hpp"

/// @file
/// All-reduce round a ring, as a textbook has it: the first collective to read.

namespace rankwise {

/// Replaces @p values by their sum over the ranks; all ranks end with the same bits.
///
/// The vector is cut into N shards. In each step a rank sends one to the next rank and receives one from the previous
/// rank, at once. In the first N-1 steps (reduce-scatter) it adds what arrives: a shard sets out at the rank behind its
/// owner, gets a term at each rank, and is complete at its owner. In the other N-1 steps (all-gather) complete shards
/// go round: a rank keeps what arrives. "1 (0+2)" is shard 1, so far the sum of ranks 0 and 2.
///
/// N = 3    step 0            step 1              step 2              step 3
/// rank 0   sends 2 (0) -> 1  sends 1 (0+2) -> 1  sends 0 (all) -> 1  sends 2 (all) -> 1
/// rank 1   sends 0 (1) -> 2  sends 2 (0+1) -> 2  sends 1 (all) -> 2  sends 0 (all) -> 2
/// rank 2   sends 1 (2) -> 0  sends 0 (1+2) -> 0  sends 2 (all) -> 0  sends 1 (all) -> 0
///
/// ring_reduce_scatter_sum() and ring_all_gather() send the same bytes and give the same bits. They send a shard in
/// pieces: one is added while the next is under way, and scratch does not grow with the vector.
///
/// @param values  (n) any type that can be added, the same n on all ranks.
/// @param group   the N >= 1 ranks that take part; all of them make this call.
/// @cost     2 (N-1) messages a rank, each of about S/N of the vector's S bytes: 2 (N-1) alpha + 2 (N-1)/N beta S. To the
///           byte: textbook_ring_traffic(). Scratch of one shard.
/// @failure  an error of a message ends the whole job with rank, file and line.
/// @source   Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002.
void textbook_ring_all_reduce_sum(const Tensor& values, Group& group);

/// What one rank sends in textbook_ring_all_reduce_sum(): all shards but its own, then all but the next rank's.
/// @param n      elements, >= 0; shards without any make no message.
/// @param type   of the elements.
/// @param ranks  N >= 1.
/// @param rank   0 <= rank < N.
Traffic textbook_ring_traffic(std::int64_t n, DType type, int ranks, int rank);

/// Its scratch, in bytes: the largest shard that arrives to be added, which are all but the previous rank's.
/// Parameters as for textbook_ring_traffic().
std::int64_t textbook_ring_scratch(std::int64_t n, DType type, int ranks, int rank);

}  // namespace rankwise
