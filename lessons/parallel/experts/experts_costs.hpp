#pragma once

#include <string>

#include "common/program/report.hpp"
#include "lessons/frame/costs.hpp"
#include "lessons/parallel/experts/experts_options.hpp"

/// @file
/// Memory and traffic of expert parallelism. Only the traffic along `experts` depends on the routing.

namespace rankwise {

/// The parameters that a rank stores: all dense ones, and its experts.
ParameterTable table_of(const ExpertParallelOptions& options, RankOf rank);
/// The gradients of the dense parameters, the first of that table.
GradientLayout dense_gradients(const ParameterTable& table, DType type);
/// The gradients of the rank's experts.
GradientLayout expert_gradients(const ParameterTable& table, DType type);

/// The all-to-alls of one block with experts in one micro-batch: counts, rows to the experts, outputs back, and in the
/// backward pass gradients of both.
/// @param sent      (e) rows that this rank sends to each rank's experts.
/// @param received  (e) rows that its experts receive from each rank.
/// @param training  whether a backward pass follows.
std::vector<CollectiveShape> exchanges_of(const ModelConfig& config, const ActivationShape& shape,
                                          Algorithm algorithm, const std::vector<std::int64_t>& sent,
                                          const std::vector<std::int64_t>& received, bool training = true);

/// Memory and traffic of rank r of N, without the traffic along `experts`.
///
///     model state   (D + P_E / e) times that of a parameter: D dense parameters, P_E of all experts
///     activations   a rank may receive all rows of its group: buffers are allocated for the most (S)
///     sent          world: all-reduce of D gradients; replicas: of P_E / e
Costs costs(const ExpertParallelOptions& options, RankOf rank);

/// Options with which the run would fit.
std::string suggest_options(const ExpertParallelOptions& options, int N, std::int64_t bytes);
/// Prints the traffic along `experts` of a dry run.
void report_plan(Report& report, const ExpertParallelOptions& options, int N);

}  // namespace rankwise
