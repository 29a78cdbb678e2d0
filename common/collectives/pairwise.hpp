#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/partition.hpp"
#include "common/messages/group.hpp"

/// @file
/// All-to-all by pairwise exchange.

namespace rankwise {

/// The elements of a vector that are for, or from, each rank.
using Blocks = std::vector<Range>;

/// Blocks that follow each other without gaps.
/// @param counts  elements of each block, >= 0.
Blocks blocks_of(std::span<const std::int64_t> counts);

/// Sends block s of @p sent to rank s and receives block q of @p received from rank q, for all s and q.
///
/// In step k = 1 .. N-1 rank r sends to rank r + k and receives from rank r - k (modulo N). If N is a power of two
/// both are rank r xor k, so the ranks form pairs that exchange blocks. "02" is the block of rank 0 for rank 2.
///
/// N = 4     own block  step 1         step 2         step 3
/// rank 0    copies 00  sends 01 -> 1  sends 02 -> 2  sends 03 -> 3
/// rank 1    copies 11  sends 10 -> 0  sends 13 -> 3  sends 12 -> 2
/// rank 2    copies 22  sends 23 -> 3  sends 20 -> 0  sends 21 -> 1
/// rank 3    copies 33  sends 32 -> 2  sends 31 -> 1  sends 30 -> 0
///
/// @param sent      elements of any type.
/// @param to        (N) blocks of @p sent by receiver; empty blocks are not sent.
/// @param received  elements of the same type; does not overlap @p sent.
/// @param from      (N) blocks of @p received by sender: as large as that sender's block for this rank.
/// @param group     the N >= 1 ranks that take part; all of them make this call.
/// @cost     N-1 messages per rank; every element but those of its own block is sent once. No scratch. For blocks of
///           b bytes (N-1) (alpha + beta b).
/// @failure  a communication error ends the whole job with rank, file and line.
/// @source   Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521.
void pairwise_all_to_all(const Tensor& sent, const Blocks& to, const Tensor& received, const Blocks& from,
                         Group& group);

}  // namespace rankwise
