#pragma once

#include <cstdint>
#include <string>

#include "common/program/report.hpp"
#include "lessons/08_tensor_parallel/options.hpp"
#include "lessons/frame/costs.hpp"

/// @file
/// Memory and traffic of tensor parallelism, from the sizes alone.

namespace rankwise {

/// Memory and traffic of rank r of N = dp t.
///
///     model state   16 P_t bytes (bf16: 18 P_t or 16 P_t), P_t = P / t plus (1 - 1/t) of the replicated parameters
///     activations   s R (4 C + 12 C / t) a layer; with --sequence-parallel 2 C + 14 C / t, with --regather 16 C / t
///     sent, tp      tensor_parallel_traffic(): 8 (t-1)/t B T C elements a layer and micro-batch
///     sent, dp      gradient_sums(): 2 (dp-1)/dp of P_t gradients in a step
Costs costs(const TensorParallelOptions& options, RankOf rank);

/// Options with which the run would fit into @p bytes, as a sentence.
std::string suggest_options(const TensorParallelOptions& options, int N, std::int64_t bytes);

/// Prints in a dry run which rows or columns of each tensor rank 0 holds.
void report_plan(Report& report, const TensorParallelOptions& options, int N);

}  // namespace rankwise
