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

  /// Axes of N ranks, the outermost first.
  std::vector<Axis> axes(int N) const { return {{"dp", split.dp}, {"tp", split.parts(N)}}; }
};

/// Without --micro-batch a replica computes all of its sequences in one micro-batch.
Division divide(const TensorParallelOptions& options, RankOf rank);
/// Declares them.
void declare(OptionTable& table, TensorParallelOptions& options);
/// Refuses a model that N ranks cannot divide, and an algorithm that the ranks along an axis cannot run.
void check_lesson(const TensorParallelOptions& options, int N);

}  // namespace rankwise
