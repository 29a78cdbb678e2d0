#pragma once

#include "common/messages/group.hpp"

/// @file
/// All-to-all in log2 N messages.

namespace rankwise {

/// Sends block s of @p sent to rank s and receives block q of @p received from rank q, for all s and q, by way of
/// other ranks.
///
/// First rank r rotates its blocks: block i is now the one for rank r + i (modulo N), and has i ranks to go. In the
/// step of distance d = 1, 2, 4, ... it sends all blocks whose number i has bit d to rank r + d, in one message, and
/// puts those that arrive from rank r - d in their places. So block i makes the steps of the bits of i, and arrives.
/// At the end block i is the one from rank r - i, and is put in its place. "02" is the block of rank 0 for rank 2.
///
/// N = 4     rotated      distance 1            distance 2            in order
/// rank 0    00 01 02 03  sends 01 03 -> 1      sends 02 32 -> 2      00 10 20 30
/// rank 1    11 12 13 10  sends 12 10 -> 2      sends 13 03 -> 3      01 11 21 31
/// rank 2    22 23 20 21  sends 23 21 -> 3      sends 20 10 -> 0      02 12 22 32
/// rank 3    33 30 31 32  sends 30 32 -> 0      sends 31 21 -> 1      03 13 23 33
///
/// @param sent      (N b) elements of any type, in blocks of b.
/// @param received  (N b) of the same type; does not overlap @p sent. Until the end it holds messages.
/// @param group     the N >= 1 ranks that take part; all of them make this call.
/// @cost     log2 N messages per rank, rounded up, of at most N/2 blocks; scratch of N b elements. If N is a power of
///           two, log2 N (alpha + beta N b / 2) for blocks of b bytes.
/// @failure  a communication error ends the whole job with rank, file and line.
/// @source   Bruck, Ho, Kipnis, Upfal and Weathersby 1997, doi:10.1109/71.642949, section 3.
void bruck_all_to_all(const Tensor& sent, const Tensor& received, Group& group);

}  // namespace rankwise
