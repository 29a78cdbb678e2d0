#pragma once

#include <vector>

#include "common/program/report.hpp"
#include "lessons/frame/costs.hpp"
#include "lessons/parallel/zero/step_plan.hpp"
#include "lessons/parallel/zero/zero3_options.hpp"

/// @file
/// Memory and traffic of ZeRO-3, computed from the sizes alone.

namespace rankwise {

/// FSDP units, types and algorithm of the messages of a step.
StepPlan step_plan(const Zero3Options& options);
/// When units are gathered and freed in the forward and backward pass of a micro-batch.
std::vector<GatherStep> gathers(const Zero3Options& options);

/// Memory and traffic of rank r of N.
///
///     parameters, gradients, optimizer   16 P / N bytes: of this rank's shards; plus the units that are gathered
///     sent                               (N-1)/N of all gathered units and of the gradients, per micro-batch
Costs costs(const Zero3Options& options, RankOf rank);

/// Prints the FSDP units and when they are gathered.
void report_plan(Report& report, const Zero3Options& options, int N);

}  // namespace rankwise
