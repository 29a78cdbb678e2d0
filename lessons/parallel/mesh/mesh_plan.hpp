#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/collectives/cost.hpp"
#include "common/memory/memory_ledger.hpp"
#include "common/messages/group.hpp"
#include "common/messages/layers/traffic_ledger.hpp"
#include "common/messages/mesh.hpp"
#include "common/messages/topology.hpp"
#include "gpt2/arithmetic.hpp"
#include "gpt2/files/checkpoint.hpp"
#include "lessons/parallel/mesh/mesh_options.hpp"
#include "lessons/parallel/pipeline/pipeline_plan.hpp"
#include "lessons/parallel/zero/sharded_adamw.hpp"

/// @file
/// Shards and messages of a rank of the mesh, combined from lessons 04, 08 and 09.

namespace rankwise {

/// An axis along which ranks have the same parameters.
struct Replicas {
  std::string axis;              ///< as "dp"
  Part part;                     ///< this rank's number along it, and their number
  bool added_up = false;         ///< whether gradients are summed along it before the end of a step
  bool divides_experts = false;  ///< whether it divides the experts of a model, which are no replicas along it then
  std::vector<CollectiveShape> also{};  ///< other collectives along it
};

/// A run on a mesh, as one of its ranks sees it.
struct MeshPlan {
  Layout layout;                   ///< the degrees
  MeshCoordinates place;           ///< this rank's
  PipelinePlan pipeline;           ///< stages and schedule, with this rank's shard of every layer
  bool zero;                       ///< whether optimizer states are sharded among replicas (ZeRO-1)
  DType gradients;                 ///< type of the gradients
  Arithmetic arithmetic;           ///< order of the sums
  Algorithm algorithm;             ///< the collectives'
  Topology job;                    ///< all ranks of the job
  int rank;                        ///< this one of them
  std::vector<Axis> axes;          ///< the mesh's, the outermost first
  std::vector<Replicas> replicas;  ///< axes of replicas; with ZeRO-1 each divides what those before it have left
  std::int64_t runs = 1;           ///< micro-batches, or runs of their tokens, that pass through a stage together
  std::int64_t leaves = 0;         ///< LessonOptions::leaves(), if replicas may have different numbers of sequences
  std::int64_t first_micro_batch = 0;  ///< where this replica begins in the global batch

  /// This rank's stages.
  std::vector<PipelineStage> stages() const { return pipeline.stages_of(place.pp); }
  /// The ranges of the table that these stages have; those of their experts, if there are any, are the last.
  std::vector<Range> ranges() const;
  /// The range of a stage's experts, or an empty one.
  Range experts_of(const PipelineStage& stage) const;
  /// Whether this rank counts a range of those that ranks along an axis that divides experts all have: the first of them
  /// does, or with ZeRO-1 each its shard.
  bool owns(Range range) const;
  /// The axes along which an element of a range has replicas.
  std::vector<Replicas> replicas_of(Range range) const;
  /// The elements of a range that this rank updates: its shard among the replicas, or all of them.
  Range updated(Range range) const;
  /// The same for all ranges.
  std::vector<Range> updated() const;
  /// The elements of a range that this rank owns, so that each parameter of the model counts once, as in the norm of
  /// the gradient:
  /// - among replicas, at the one that updates it: updated(range). Without ZeRO-1 each of them updates and counts all;
  /// - among tensor-parallel ranks, at the one that owns it in lesson 08, where rank 0 owns the replicated parameters:
  ///   owned_elements() of pipeline.table for pipeline.shape.part;
  /// - between stages, at the first one: nothing of the last stage's copy of the token embedding, is_copy() of stages().
  /// @param range  one of ranges().
  /// @return       one range, not empty, for each contiguous piece, in ascending order.
  std::vector<Range> counted(Range range) const;
  /// Views of the elements that this rank updates, of one tensor for each range.
  std::vector<Tensor> updated_of(const std::vector<Tensor>& of_ranges) const;
  /// The same for a vector with all ranges, one after the other.
  std::vector<Tensor> updated_of(const Tensor& flat) const { return updated_of(cut(flat, ranges())); }
  /// Views of the elements that this rank owns, taken from views of those that it updates: tensors, or shards.
  template <class View>
  std::vector<View> counted_of(const std::vector<View>& of_updated) const
  {
    std::vector<View> views;
    const std::vector<Range> own = ranges();
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (!owns(own[i])) continue;
      for (const Range& range : counted(own[i]))
        views.push_back(of_updated[i].slice(Range{range.first - updated(own[i]).first, range.count}));
    }
    return views;
  }
  /// The ranks of the job along an axis through this rank, "pp", "dp" or "tp"; or the two ends of its pipeline,
  /// "tied".
  std::vector<int> line(const std::string& axis) const;
  /// The ranks of such a line, and which of them share a node.
  Topology topology(const std::string& axis) const { return job.among(line(axis)); }

  /// Messages of a step to the other tensor-parallel ranks.
  Traffic to_parts() const;
  /// Messages of a step to the stages before and after.
  Traffic to_stages() const;
  /// Messages of a step to the other end of the pipeline.
  Traffic to_other_end() const;
  /// Messages of a step to replicas.
  Traffic to_replicas() const { return to_replicas(replicas.front()); }
  /// Of them, those along one axis.
  Traffic to_replicas(const Replicas& along) const;

  /// Bytes allocated for all messages of a run.
  std::int64_t message_bytes() const;
  /// (R, C) that stages send, of all runs.
  Shape rows() const { return {runs * pipeline.shape.shared_rows(), pipeline.config.channels}; }
  /// Allocates the scratch of the tensor-parallel collectives in advance: it must not grow while the pipeline's
  /// receives are under way.
  void reserve_scratch(Group& parts) const;
};

/// The plan of rank r of N.
MeshPlan plan_of(const MeshParallelOptions& options, RankOf rank);

}  // namespace rankwise
