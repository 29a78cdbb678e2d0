#pragma once

#include "lessons/09_pipeline_parallel/pipeline_options.hpp"
#include "lessons/frame/options.hpp"

/// @file
/// The options of lesson 09.

namespace rankwise {

/// Options of training, and of the pipeline that its ranks form.
struct PipelineParallelOptions : LessonOptions {
  PipelineOptions pipeline;  ///< schedule and stages

  /// All N ranks are one pipeline,
  Layout layout(int N) const { return {.pp = N}; }
  /// through which the whole global batch goes.
  std::int64_t share(int) const { return global_batch; }
  /// G, B and T on N ranks; B without --micro-batch is default_micro_batch().
  BatchShape batch(int N) const;
  /// Shape of a micro-batch that goes through all stages.
  ActivationShape activation_shape(RankOf rank) const;
};

/// Declares them.
void declare(OptionTable& table, PipelineParallelOptions& options);
/// Refuses what check_pipeline() does, and sizes that do not fit each other.
void check_lesson(const PipelineParallelOptions& options, int N);

}  // namespace rankwise
