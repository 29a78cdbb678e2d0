#pragma once

#include "lessons/parallel/pipeline/pipeline_plan.hpp"

/// @file
/// The options of lesson 11.

namespace rankwise {

/// Options of training, and of the stages of N ranks: of a pipeline's only `--partition`, because each rank has one
/// stage, and the schedule is ZB-H1.
struct ZeroBubbleOptions : PipelineParallelOptions {};

/// The whole global batch passes through one pipeline of all N ranks, in micro-batches of one shape.
Division divide(const ZeroBubbleOptions& options, RankOf rank);
/// Declares them.
void declare(OptionTable& table, ZeroBubbleOptions& options);
/// Refuses sizes that do not match each other, more stages than blocks, and fewer micro-batches than ranks.
void check_lesson(const ZeroBubbleOptions& options, int N);

/// The pipeline of a run on N ranks, with the schedule zero_bubble().
PipelinePlan plan_of(const ZeroBubbleOptions& options, int N);

}  // namespace rankwise
