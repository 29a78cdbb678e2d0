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

  /// Degrees of parallelism of N ranks.
  Layout layout(int N) const
  {
    Layout layout = mesh.layout(N);
    layout.uneven = true;
    return layout;
  }
  /// G, B and T on N ranks; without --micro-batch, B is default_micro_batch() of a replica.
  BatchShape batch(int N) const;
  /// Shape of a micro-batch on one of N ranks, with its shard of every layer.
  ActivationShape activation_shape(RankOf rank) const;
};

/// Declares them.
void declare(OptionTable& table, MeshParallelOptions& options);
/// Refuses a mesh that cannot divide this model and batch.
void check_lesson(const MeshParallelOptions& options, int N);

}  // namespace rankwise
