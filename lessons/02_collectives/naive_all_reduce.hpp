#pragma once

#include <cstdint>

#include "common/collectives/cost.hpp"
#include "common/messages/group.hpp"

/// @file
/// All-reduce as a first attempt: everything goes through rank 0.

namespace rankwise {

/// Replaces @p values by their sum over the ranks, added in the order of the ranks: ((0 + 1) + 2) + 3.
///
/// N = 3    step 0      step 1      step 2      step 3
/// rank 0   adds        adds        sends -> 1  sends -> 2
/// rank 1   sends -> 0              has the sum
/// rank 2               sends -> 0              has the sum
///
/// @param values  (n) of any type that can be added, the same n on all ranks.
/// @param group   the N >= 1 ranks that take part; all of them make this call.
/// @cost     naive_cost(); scratch of n elements on rank 0.
/// @failure  a message that fails ends the whole job with rank, file and line.
void naive_all_reduce_sum(const Tensor& values, Group& group);

/// Cost of one call of naive_all_reduce_sum().
struct NaiveCost {
  Traffic sent;       ///< messages and bytes of one rank
  double time_s = 0;  ///< duration of the whole collective
};

/// Formulas for the cost of naive_all_reduce_sum(): what one rank sends, and how long the whole collective takes.
/// @param bytes    size of each rank's vector; for 0 no message is sent.
/// @param ranks    N >= 1.
/// @param rank     the rank whose messages are counted, 0 <= rank < N.
/// @param message  time of one message. A rank sends one at a time and receives one at a time; additions take no
///                 time. message.time_s(b) is that of a message of b bytes.
/// @return  all zero for one rank, or for 0 bytes.
NaiveCost naive_cost(std::int64_t bytes, int ranks, int rank, const AlphaBeta& message);

}  // namespace rankwise
