#pragma once

#include "lessons/frame/options.hpp"
#include "lessons/parallel/pipeline/pipeline_options.hpp"
#include "lessons/parallel/pipeline/pipeline_plan.hpp"

/// @file
/// The options of lesson 11.

namespace rankwise {

/// Options of training, and of the stages of N ranks.
struct ZeroBubbleOptions : LessonOptions {
  PipelineOptions pipeline;  ///< only `--partition`: each rank has one stage, and the schedule is ZB-H1

  /// All N ranks form one pipeline.
  Layout layout(int N) const { return {.pp = N}; }
  /// Sequences that pass through it in a step: the whole global batch.
  std::int64_t share(int) const { return global_batch; }
  /// G, B and T on N ranks; B without --micro-batch is default_micro_batch().
  BatchShape batch(int N) const;
  /// Shape of a micro-batch that passes through all stages.
  ActivationShape activation_shape(RankOf rank) const;
};

/// Declares them.
void declare(OptionTable& table, ZeroBubbleOptions& options);
/// Refuses sizes that do not match each other, more stages than blocks, and fewer micro-batches than ranks.
void check_lesson(const ZeroBubbleOptions& options, int N);

/// The pipeline of a run on N ranks, with the schedule zero_bubble().
PipelinePlan plan_of(const ZeroBubbleOptions& options, int N);

}  // namespace rankwise
