#pragma once

#include "lessons/parallel/mesh/sharding_mesh.hpp"
#include "lessons/parallel/offload/offload_options.hpp"
#include "lessons/parallel/tensor/split.hpp"

/// @file
/// The options of a mesh whose replicas shard parameters too.

namespace rankwise {

/// Options of N = replicas x shard x tp ranks: what a data rank keeps whole, and which ranks share what it does not.
/// Gathers and tiers are those of lessons 06 and 07.
struct MeshZeroOptions : ZeroOffloadOptions {
  int zero = 3;         ///< 3: parameters are sharded along the data axis; 2: only gradients and optimizer states
  int dp = 0;           ///< d, data ranks; 0: N / tp
  int tp = 0;           ///< t, ranks that divide every layer; 0: N / dp, or without --dp two if N is even
  int shard_ranks = 0;  ///< s, data ranks that share the model state of one replica; 0: all d
  bool sequence_parallel = false;  ///< between the divided layers a rank has T / t tokens of each sequence
  bool regather = false;           ///< keep only this rank's normalised rows, gather all again in backward
  bool show_groups = false;        ///< print the coordinates and groups of all ranks

  MeshZeroOptions() { offload.what = Offload::none; }

  /// Degrees of parallelism of N ranks.
  Layout degrees(int N) const;
  /// Axes of N ranks, the outermost first: replicas, shard, tp.
  /// @param beside  carries the messages along the data axis, which overlap with the computation.
  std::vector<Axis> axes(int N, Stream* beside = nullptr) const;
  /// Coordinates of a rank.
  ShardingPlace place(RankOf rank) const { return sharding_place(axes(rank.ranks), rank.rank); }
  /// The options of lesson 08 for this mesh.
  SplitOptions split(int N) const;
  /// When units are gathered and freed. With `--zero=2` all of them stay whole.
  GatherOptions gather_options() const;
};

/// The replicas that divide the global batch are the data ranks. Without --micro-batch each computes all of its sequences
/// in one micro-batch.
Division divide(const MeshZeroOptions& options, RankOf rank);
/// Declares them.
void declare(OptionTable& table, MeshZeroOptions& options);
/// Refuses a mesh that cannot divide this model and batch, and options that contradict each other.
void check_lesson(const MeshZeroOptions& options, int N);

}  // namespace rankwise
