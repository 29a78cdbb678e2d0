#pragma once

#include <vector>

#include "common/messages/mesh.hpp"
#include "lessons/parallel/context/token_runs.hpp"
#include "lessons/parallel/mesh/mesh_options.hpp"

/// @file
/// The options of a mesh of five axes.

namespace rankwise {

/// The degrees of parallelism along all five axes.
struct FiveDegrees {
  Layout layout;  ///< dp, tp and pp, and the 2 c runs of tokens of a sequence
  int cp = 1;     ///< c, ranks that divide each sequence
  int ep = 1;     ///< e of the dp ranks, which share the experts

  /// Axes of the mesh, the outermost first: pp, dp, ep, cp, tp. Along "dp" are the dp / e replicas of the experts.
  std::vector<Axis> axes() const;
};

/// Options of training, of the mesh of N ranks, of the pipeline, of long sequences and of experts.
struct FiveAxesOptions : LessonOptions {
  MeshOptions mesh;                       ///< dp, tp and pp, ZeRO-1, sequence parallelism
  PipelineOptions pipeline;               ///< schedule and stages
  int cp = 0;                             ///< c; 0: two if the remaining ranks are even
  TokenOrder order = TokenOrder::zigzag;  ///< which runs of tokens a rank has
  int ep = 0;                             ///< e; 0: as many as divide dp and the experts

  /// Four experts by default.
  FiveAxesOptions() { experts.count = 4; }
  /// The degrees of N ranks, with defaults in the place of 0.
  FiveDegrees degrees(int N) const;
  /// The runs of tokens of a sequence.
  TokenRuns runs(int N) const { return {order, batch(1).sequence, degrees(N).cp}; }
};

/// The replicas are those of the dp axis. Without --micro-batch, B is default_micro_batch(), or one sequence where sums
/// continue a tree, because they run over the tokens of a sequence first.
/// @return  with the shape of one of the two runs of tokens of a micro-batch.
Division divide(const FiveAxesOptions& options, RankOf rank);
/// Declares them.
void declare(OptionTable& table, FiveAxesOptions& options);
/// Refuses a mesh that cannot divide this model and batch.
void check_lesson(const FiveAxesOptions& options, int N);

/// All degrees of N ranks with @p experts experts: every product of dp, tp, pp and cp, and every e that divides dp and the
/// experts.
std::vector<FiveDegrees> all_degrees(int N, std::int64_t experts);

}  // namespace rankwise
