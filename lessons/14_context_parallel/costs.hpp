#pragma once

#include <string>

#include "common/program/report.hpp"
#include "lessons/14_context_parallel/options.hpp"
#include "lessons/frame/costs.hpp"

/// @file
/// Memory, traffic and arithmetic of context parallelism, from the sizes alone.

namespace rankwise {

/// Memory and traffic of rank r of N:
///
///     activations  those of B T / c rows; with all-to-all attention s 4 B T C / c more for each layer
///     cp           ring: 2 c - 2 blocks of s 2 B T C / c bytes for each layer, and c of gradients, a 2 B T C / c
///                  all-to-all: (c-1)/c of s 8 B T C / c
///                  exact arithmetic: gradients of keys once more for each of the other ranks' queries, and all gradients
///                  of each sequence
///     world, dp    2 (N-1)/N of the gradients, as in lesson 03; in exact arithmetic 2 (dp-1)/dp
Costs costs(const ContextParallelOptions& options, RankOf rank);
/// Number of pairs of a query and a key of a sequence for which a rank computes attention, in all heads. With all-to-all
/// attention it computes 1/c of the heads of all pairs.
double pairs_of(const ContextParallelOptions& options, RankOf rank);
/// Floating-point operations that a rank charges in a step. Attention counts only the pairs that the mask leaves, unlike
/// in other lessons, because their number may differ between ranks.
std::int64_t charged_flops(const ContextParallelOptions& options, RankOf rank);
/// Options with which the run would fit into @p bytes of device memory, as a sentence.
std::string suggest_options(const ContextParallelOptions& options, int N, std::int64_t bytes);
/// Prints which tokens each rank has, and how many pairs of a query and a key.
void report_plan(Report& report, const ContextParallelOptions& options, int N);

}  // namespace rankwise
