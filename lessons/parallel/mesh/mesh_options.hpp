#pragma once

#include "lessons/frame/options.hpp"
#include "lessons/parallel/mesh/mesh_layout.hpp"
#include "lessons/parallel/pipeline/pipeline_options.hpp"

/// @file
/// The options of a mesh of three axes: dp, tp and pp.

namespace rankwise {

/// Options of training, of the mesh of N ranks, and of the pipeline along one of its axes.
struct MeshParallelOptions : LessonOptions {
  MeshOptions mesh;          ///< degrees, ZeRO-1, sequence parallelism
  PipelineOptions pipeline;  ///< schedule and stages
};

/// Replicas, each of which is a pipeline of divided layers.
Division divide(const MeshParallelOptions& options, RankOf rank);
/// Declares them.
void declare(OptionTable& table, MeshParallelOptions& options);
/// Refuses a mesh that cannot divide this model and batch.
void check_lesson(const MeshParallelOptions& options, int N);

}  // namespace rankwise
