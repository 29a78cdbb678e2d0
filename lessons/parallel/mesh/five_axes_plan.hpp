#pragma once

#include <cstdint>
#include <vector>

#include "lessons/parallel/context/ring_attention.hpp"
#include "lessons/parallel/mesh/five_axes_options.hpp"
#include "lessons/parallel/mesh/mesh_plan.hpp"

/// @file
/// Shards and messages of a rank on five axes: those of lesson 10, and what lessons 14 and 15 add.

namespace rankwise {

/// A run on five axes, as one of its ranks sees it.
struct FiveAxesPlan {
  FiveDegrees degrees;                     ///< the whole mesh's
  MeshPlan mesh;                           ///< stages, schedule, shards and replicas
  RingSizes ring;                          ///< sizes of ring attention
  std::vector<ActionCosts> without_pairs;  ///< operations of each stage without attention's pairs
  Range experts;                           ///< those that this rank stores, of each block with experts

  /// Number along cp.
  int context_rank() const { return mesh.replicas.back().part.index; }
  /// Pairs of a query and a key for which this rank computes attention, in a micro-batch and all its heads' channels.
  std::int64_t pairs() const;
  /// Gradients of a stage's experts.
  GradientLayout expert_gradients(const PipelineStage& stage) const;
  /// Blocks of a stage that have experts.
  std::int64_t expert_blocks(const PipelineStage& stage) const
  {
    return mesh.pipeline.shape_of(stage).expert_blocks(mesh.pipeline.config);
  }
  /// True if the model has experts.
  bool has_experts() const { return !mesh.pipeline.table.experts().empty(); }

  /// Messages of a step to the other tensor-parallel ranks, without the sums of experts' outputs.
  Traffic to_parts() const;
  /// Messages of a step along a sequence.
  Traffic to_context() const;
  /// Floating-point operations of a step.
  std::int64_t flops() const;

  /// Sum of experts' outputs along tp, at most.
  CollectiveShape largest_output() const;
  /// Numbers of the chosen experts that all runs of a micro-batch's tokens have: (2 c, R, k).
  std::int64_t choices() const;
  /// All-to-alls of rows that the ranks of ep make, without rows.
  std::vector<CollectiveShape> row_exchanges() const;
  /// Bytes allocated for all messages of a run.
  std::int64_t message_bytes() const;
};

/// The plan of rank r of N.
FiveAxesPlan plan_of(const FiveAxesOptions& options, RankOf rank);

}  // namespace rankwise
