#pragma once

#include "lessons/frame/costs.hpp"
#include "lessons/parallel/zero/step_plan.hpp"
#include "lessons/parallel/zero/zero1_options.hpp"

/// @file
/// Memory and traffic of ZeRO-1, computed from the sizes alone.

namespace rankwise {

/// The messages of a step.
StepPlan step_plan(const Zero1Options& options);

/// Memory and traffic of rank r of N.
///
///     parameters, gradients   on every rank: 4 P bytes each
///     optimizer               8 P / N: the moments of this rank's shards
///     sent                    (N-1)/N of the gradients and of the parameters in a step
Costs costs(const Zero1Options& options, RankOf rank);

}  // namespace rankwise
