#pragma once

#include <concepts>
#include <cstdint>
#include <string>

#include "lessons/frame/costs.hpp"
#include "lessons/parallel/pipeline/pipeline_plan.hpp"

/// @file
/// Memory and traffic of a pipeline, from the sizes alone.

namespace rankwise {

/// Memory and traffic of rank r in any pipeline of p ranks, from its plan and the options of training.
Costs costs(const PipelinePlan& plan, const LessonOptions& options, RankOf rank);

/// Memory and traffic of rank r of p.
///
///     model state   of its stages, about 16 P / p; the last stage has a copy of the token embedding
///     activations   of a stage for each micro-batch in flight
///     sent, pp      m B T C elements a stage boundary and direction
///     sent, tied    V C elements between first and last stage, by an all-reduce
template <std::derived_from<PipelineParallelOptions> Options>
Costs costs(const Options& options, RankOf rank)
{
  return costs(plan_of(options, rank.ranks), options, rank);
}

/// Floating-point operations that a rank charges to the virtual clock in a step: of all its actions.
template <std::derived_from<PipelineParallelOptions> Options>
std::int64_t charged_flops(const Options& options, RankOf rank)
{
  return plan_of(options, rank.ranks).flops_of(rank.rank);
}

/// Options with which the run would fit into @p bytes, as a sentence.
std::string suggest_options(const PipelineParallelOptions& options, int N, std::int64_t bytes);

}  // namespace rankwise
