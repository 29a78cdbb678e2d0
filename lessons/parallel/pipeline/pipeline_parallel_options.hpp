#pragma once

#include "lessons/frame/options.hpp"
#include "lessons/parallel/pipeline/pipeline_options.hpp"

/// @file
/// The options of a run in which all ranks form one pipeline.

namespace rankwise {

/// Options of training, and of a pipeline of N ranks.
struct PipelineParallelOptions : LessonOptions {
  PipelineOptions pipeline;  ///< schedule and stages

  /// All N ranks form one pipeline.
  Layout layout(int N) const { return {.pp = N, .uneven = true}; }
  /// Sequences that pass through it in a step: the whole global batch.
  std::int64_t share(int) const { return global_batch; }
  /// G, B and T on N ranks; B without --micro-batch is default_micro_batch().
  BatchShape batch(int N) const;
  /// Shape of a micro-batch that passes through all stages.
  ActivationShape activation_shape(RankOf rank) const;
};

/// Declares them.
void declare(OptionTable& table, PipelineParallelOptions& options);
/// Refuses sizes that do not match each other, and pipelines that check_pipeline() refuses.
void check_lesson(const PipelineParallelOptions& options, int N);

}  // namespace rankwise
