#pragma once

#include <vector>

#include "common/messages/mesh.hpp"
#include "lessons/frame/options.hpp"
#include "lessons/parallel/tensor/split.hpp"

/// @file
/// The options of lesson 08, and a rank's coordinates.

namespace rankwise {

/// Options of N = dp t ranks: t neighbours divide a model, and dp replicas divide the batch.
struct TensorParallelOptions : LessonOptions {
  SplitOptions split;  ///< t, dp, and options of sequence parallelism

  /// Degrees of parallelism of N ranks.
  Layout layout(int N) const { return {.dp = split.dp, .tp = split.parts(N), .uneven = true}; }
  /// Axes of N ranks, the outermost first.
  std::vector<Axis> axes(int N) const { return {{"dp", split.dp}, {"tp", split.parts(N)}}; }
  /// Index and number of the tensor-parallel shard that rank r of N holds.
  Part part(RankOf rank) const
  {
    const int t = split.parts(rank.ranks);
    return {rank.rank % t, t};
  }
  /// G, B and T. Without --micro-batch a replica computes all of its sequences in one micro-batch.
  BatchShape batch(int) const { return cut_batch(split.dp); }
  /// Shape of a micro-batch, with the shard of every layer that a rank computes.
  ActivationShape activation_shape(RankOf rank) const
  {
    const std::int64_t B = batch(rank.ranks).micro_batch;
    return divided(TrainingOptions::activation_shape(B).with_sequences(B), split, part(rank));
  }
  /// The replica to which a rank belongs.
  RankOf replica(RankOf rank) const { return {rank.rank / split.parts(rank.ranks), split.dp}; }
};

/// Declares them.
void declare(OptionTable& table, TensorParallelOptions& options);
/// Refuses a model that N ranks cannot divide, and an algorithm that the ranks along an axis cannot run.
void check_lesson(const TensorParallelOptions& options, int N);

}  // namespace rankwise
