#pragma once

#include <cstdint>
#include <string>

#include "common/program/report.hpp"
#include "lessons/frame/costs.hpp"
#include "lessons/parallel/mesh/five_axes_plan.hpp"
#include "lessons/parallel/mesh/mesh_forecast.hpp"

/// @file
/// Memory, traffic and time of a rank on five axes, from the sizes alone.

namespace rankwise {

/// Memory and traffic of rank r of N, without the rows of experts, which the routing decides.
///
///     model state   4 (D / (tp pp) + P_E / (e tp pp)) bytes of parameters, as many of gradients; of the optimizer states
///                   1 / (dp c) of the dense ones, and e / (dp c) of those of experts
///     activations   of B T / c tokens in its shard of a stage, for each micro-batch in flight
///     sent          along tp and pp as in lesson 10, for T / c tokens; along cp as in lesson 14
Costs costs(const FiveAxesOptions& options, RankOf rank);

/// Floating-point operations that a rank charges to the virtual clock in a step.
std::int64_t charged_flops(const FiveAxesOptions& options, RankOf rank);

/// Options with which the run would fit into @p bytes, as a sentence.
std::string suggest_options(const FiveAxesOptions& options, int N, std::int64_t bytes);

/// The number of ranks up to which all meshes are rehearsed; there are more meshes than in lesson 10.
inline constexpr int most_ranks_of_all_five = 16;

/// Prints in a dry run the stages, the planned schedule, and with --link the forecast of all meshes.
void report_plan(Report& report, const FiveAxesOptions& options, int N,
                 const StepSeconds<FiveAxesOptions>& step_seconds);

}  // namespace rankwise
