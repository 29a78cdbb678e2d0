#pragma once

#include "lessons/frame/options.hpp"
#include "lessons/parallel/pipeline/pipeline_options.hpp"

/// @file
/// The options of a run in which all ranks form one pipeline.

namespace rankwise {

/// Options of training, and of a pipeline of N ranks.
struct PipelineParallelOptions : LessonOptions {
  PipelineOptions pipeline;  ///< schedule and stages
};

/// The whole global batch passes through one pipeline of all N ranks, in micro-batches of one shape.
Division divide(const PipelineParallelOptions& options, RankOf rank);
/// Declares them.
void declare(OptionTable& table, PipelineParallelOptions& options);
/// Refuses sizes that do not match each other, and pipelines that check_pipeline() refuses.
void check_lesson(const PipelineParallelOptions& options, int N);

}  // namespace rankwise
