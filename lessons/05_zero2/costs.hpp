#pragma once

#include "lessons/05_zero2/options.hpp"
#include "lessons/frame/costs.hpp"
#include "lessons/parallel/zero/step_plan.hpp"

/// @file
/// Memory and traffic of the lesson, computed from the sizes alone.

namespace rankwise {

/// Buckets, types and algorithm of the messages of a step.
StepPlan step_plan(const Zero2Options& options);

/// Memory and traffic of rank r of N.
///
///     parameters             on every rank: 4 P bytes
///     gradients, optimizer   4 P / N and 8 P / N: of this rank's shards; plus the buckets that are alive
///     sent                   (N-1)/N of the gradients per micro-batch, M times, and of the parameters once
Costs costs(const Zero2Options& options, RankOf rank);

}  // namespace rankwise
