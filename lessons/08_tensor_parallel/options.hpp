#pragma once

#include <vector>

#include "common/messages/mesh.hpp"
#include "lessons/08_tensor_parallel/split.hpp"
#include "lessons/frame/options.hpp"

/// @file
/// The options of tensor parallelism, and where a rank stands.

namespace rankwise {

/// Options of N = dp t ranks. Neighbours divide a model; replicas share the batch.
struct TensorParallelOptions : LessonOptions {
  SplitOptions split;  ///< t, dp, and what is divided beside the layers

  /// Degrees of parallelism of N ranks.
  Layout layout(int N) const { return {.dp = split.dp, .tp = split.parts(N)}; }
  /// Axes of N ranks, the outermost first.
  std::vector<Axis> axes(int N) const { return {{"dp", split.dp}, {"tp", split.parts(N)}}; }
  /// Which part of every divided layer rank r of N has.
  Part part(RankOf rank) const
  {
    const int t = split.parts(rank.ranks);
    return {rank.rank % t, t};
  }
  /// G, B and T. Without --micro-batch a replica computes its share of the global batch at once.
  BatchShape batch(int N) const { return TrainingOptions::batch(share(N)); }
  /// Shape of a micro-batch, of which a rank computes its part.
  ActivationShape activation_shape(RankOf rank) const
  {
    return divided(TrainingOptions::activation_shape(share(rank.ranks)), split, part(rank));
  }
  /// Sequences of the global batch that one replica computes.
  std::int64_t share(int) const { return global_batch / split.dp; }
};

/// Declares them.
void declare(OptionTable& table, TensorParallelOptions& options);
/// Refuses what N ranks cannot divide, and collectives that the ranks along an axis cannot make.
void check_lesson(const TensorParallelOptions& options, int N);

}  // namespace rankwise
