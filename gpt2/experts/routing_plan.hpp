#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/partition.hpp"
#include "gpt2/config.hpp"

/// @file
/// Routing of the rows of a micro-batch to the experts that the router has chosen.

namespace rankwise {

/// Sizes of a micro-batch that is routed.
struct RoutingShape {
  std::int64_t B = 0;    ///< sequences
  std::int64_t T = 0;    ///< tokens of each
  ExpertConfig experts;  ///< E, k, capacity, weight of the auxiliary loss
};

/// The rows that are sent to experts: expert by expert, in the order of the tokens, and of a token's choices.
struct RoutingPlan {
  std::vector<std::int32_t> places;  ///< (R, k) row of each choice; -1: dropped, its expert is full
  std::vector<std::int64_t> leaves;  ///< (E, leaves) rows of each expert by leaf of the sum over the batch
  std::vector<std::int64_t> chosen;  ///< (B, E) choices of each expert in a sequence, dropped ones included
  std::vector<std::int64_t> rows;    ///< (E) rows that are sent to each expert
};

/// Plans the rows of a micro-batch. Each sequence is planned for itself, so that no plan depends on the layout: an
/// expert takes the first capacity(T) choices of it, in the order of the tokens, and of a token's choices.
/// @param choices  (B T, k) experts of each token, those of a token distinct.
RoutingPlan plan_routing(std::span<const std::int32_t> choices, const RoutingShape& shape);

/// The plan of the tokens @p run of each sequence, for a rank that has only these. The same choices are dropped as in the
/// plan of whole sequences, and `chosen` remains that of whole sequences.
/// @param whole    plan_routing() of the whole sequences.
/// @param choices  (B T, k) of the whole sequences.
/// @param shape    shape of the whole sequences.
/// @param leaves   leaves of each sequence's run, in a sum over the rows of the runs.
RoutingPlan plan_of_run(const RoutingPlan& whole, std::span<const std::int32_t> choices, const RoutingShape& shape,
                        Range run, std::int64_t leaves);

/// The gradient of the auxiliary loss, summed over sequences and T times as heavy, with respect to the probability of
/// each expert for any token of a sequence: weight E f, (B, E), where f is the fraction of the sequence's choices that
/// are that expert. The loss of a sequence is weight E times the sum over experts of f P, P the mean probability. It
/// counts once a token, because the sum over a step is divided by the number of tokens.
/// @source  Fedus et al. 2022 (Switch Transformer), equations 4 to 6.
std::vector<double> auxiliary_pull(const RoutingPlan& plan, const RoutingShape& shape);

}  // namespace rankwise
