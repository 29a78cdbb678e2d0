#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/memory/memory_ledger.hpp"
#include "common/messages/group.hpp"
#include "common/messages/layers/traffic_ledger.hpp"
#include "common/messages/topology.hpp"
#include "gpt2/arithmetic.hpp"
#include "gpt2/checkpoint.hpp"
#include "lessons/04_zero1/sharded_adamw.hpp"
#include "lessons/09_pipeline_parallel/pipeline_plan.hpp"
#include "lessons/10_3d_parallel/options.hpp"

/// @file
/// What a rank of the mesh has and sends, as the sum of what lessons 04, 08 and 09 say of it.

namespace rankwise {

/// A run on a mesh, as one of its ranks sees it.
struct MeshPlan {
  Layout layout;          ///< the degrees
  MeshCoordinates place;  ///< of this rank
  PipelinePlan pipeline;  ///< of its part of every layer
  bool zero;              ///< whether replicas share out optimizer states
  DType gradients;        ///< their type
  bool tied_separate;     ///< whether the tied embedding's second gradient is a sum of its own
  Algorithm algorithm;    ///< of collectives
  Topology job;           ///< of all ranks

  /// This rank's stages.
  std::vector<PipelineStage> stages() const { return pipeline.stages_of(place.pp); }
  /// What they have of the table.
  std::vector<Range> ranges() const { return ranges_of(pipeline.table, stages()); }
  /// Of a range, what this rank updates: its shard among the replicas, or all of it.
  Range updated(Range range) const;
  /// Of all ranges.
  std::vector<Range> updated() const;
  /// Of a range, what this rank answers for where each parameter of the model counts once, as in the norm of the gradient: a run
  /// of elements for each stretch of those it updates.
  std::vector<Range> counted(Range range) const;
  /// Of tensors of all ranges, views of what this rank updates.
  std::vector<Tensor> updated_of(const std::vector<Tensor>& of_ranges) const;
  /// The same of a vector that has all ranges, one after the other.
  std::vector<Tensor> updated_of(const Tensor& flat) const { return updated_of(cut(flat, ranges())); }
  /// Of what it updates of all ranges, views of what it answers for: tensors, or shards.
  std::vector<Tensor> counted_of(const std::vector<Tensor>& of_updated) const;
  std::vector<Shard> counted_of(const std::vector<Shard>& of_updated) const;  ///< as of tensors
  /// The ranks of the job along an axis through this one, "pp", "dp" or "tp"; or of the two ends of its pipeline, "tied".
  std::vector<int> line(const std::string& axis) const;
  /// Which of the ranks of a line share a node.
  Topology topology(const std::string& axis) const { return job.among(line(axis)); }

  /// Sent in a step to the ranks that have the other parts.
  Traffic to_parts() const;
  /// Sent in a step to the stages before and behind.
  Traffic to_stages() const;
  /// Sent in a step to the other end of the pipeline.
  Traffic to_other_end() const;
  /// Sent in a step to replicas.
  Traffic to_replicas() const;

  /// Bytes kept for all messages of a run.
  std::int64_t message_bytes() const;
  /// Makes the scratch of the passes' collectives among the parts, which must not grow in a pass: receives of a pipeline are
  /// under way then, started ahead of their time.
  void reserve_scratch(Group& parts) const;
};

/// The plan of rank r of N.
MeshPlan plan_of(const MeshParallelOptions& options, RankOf rank);

}  // namespace rankwise
