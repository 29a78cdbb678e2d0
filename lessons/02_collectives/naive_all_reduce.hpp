#pragma once

#include <cstdint>

#include "common/collectives/cost.hpp"
#include "common/messages/group.hpp"

/// @file
/// All-reduce as one might write it first: everything goes through rank 0.

namespace rankwise {

/// Replaces @p values by their sum over the ranks, added by rank: ((0 + 1) + 2) + 3.
///
/// N = 3    step 0      step 1      step 2      step 3
/// rank 0   adds        adds        sends -> 1  sends -> 2
/// rank 1   sends -> 0              has the sum
/// rank 2               sends -> 0              has the sum
///
/// @param values  (n) any type that can be added, the same n on all ranks.
/// @param group   the N >= 1 ranks that take part; all of them make this call.
/// @cost     naive_cost(); scratch of n elements on rank 0.
/// @failure  an error of a message ends the whole job with rank, file and line.
void naive_all_reduce_sum(const Tensor& values, Group& group);

/// What one call of naive_all_reduce_sum() costs.
struct NaiveCost {
  Traffic sent;       ///< by one rank
  double time_s = 0;  ///< of the whole collective
};

/// The formulas.
/// @param bytes    of each rank's vector; without any no message is sent.
/// @param ranks    N >= 1.
/// @param rank     whose messages are counted, 0 <= rank < N.
/// @param message  the time of one message. A rank sends one at a time and receives one at a time; adding takes no time.
NaiveCost naive_cost(std::int64_t bytes, int ranks, int rank, const AlphaBeta& message);

}  // namespace rankwise
