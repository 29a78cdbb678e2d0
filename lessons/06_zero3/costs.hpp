#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/program/report.hpp"
#include "lessons/04_zero1/step_plan.hpp"
#include "lessons/06_zero3/options.hpp"
#include "lessons/frame/costs.hpp"

/// @file
/// What the lesson needs and sends, from the sizes alone.

namespace rankwise {

/// What is sent in a step, and in which pieces.
StepPlan step_plan(const Zero3Options& options);
/// When units are gathered and freed in a forward and backward pass.
std::vector<GatherStep> gathers(const Zero3Options& options);

/// Memory and traffic of rank r of N.
///
///     parameters, gradients, optimizer   16 P / N bytes: of this rank's shards; and the units that are gathered
///     sent                               (N-1)/N of all that is gathered, and of the gradients after each of the M
///                                        micro-batches
Costs costs(const Zero3Options& options, RankOf rank);

/// Options with which the run would fit into @p bytes, as a paragraph.
std::string suggest_options(const Zero3Options& options, int N, std::int64_t bytes);

/// Prints the units and when they are gathered.
void report_plan(Report& report, const Zero3Options& options, int N);

}  // namespace rankwise
