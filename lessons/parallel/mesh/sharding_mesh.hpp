#pragma once

#include <cstdint>
#include <vector>

#include "common/base/partition.hpp"
#include "common/messages/mesh.hpp"
#include "common/program/session.hpp"
#include "gpt2/arithmetic.hpp"
#include "gpt2/config.hpp"
#include "gpt2/parameter_table.hpp"

/// @file
/// The mesh of tensor-parallel ranks, of ranks that shard one replica of the model state, and of replicas: which
/// sequences a rank computes, and which elements it counts.
///
///     rank = (replica * s + shard) * t + tp          s ranks share a replica, t ranks divide every layer
///
/// @source  Zhao et al. 2023 (PyTorch FSDP), section 3.2.2, hybrid sharding; Shoeybi et al. 2019 for tp.

namespace rankwise {

/// Coordinates of a rank, and the number of ranks along each axis.
struct ShardingPlace {
  RankOf replicas;  ///< replica of the model state
  RankOf shard;     ///< shard of that replica
  RankOf tp;        ///< tensor-parallel shard of every layer

  /// Index among the data ranks, which divide the batch, and their number.
  RankOf data() const { return {replicas.rank * shard.ranks + shard.rank, replicas.ranks * shard.ranks}; }
  /// The tensor-parallel shard.
  Part part() const { return {tp.rank, tp.ranks}; }
};

/// Coordinates of a rank.
/// @param axes  of replicas, shard and tp.
ShardingPlace sharding_place(const std::vector<Axis>& axes, int rank);

/// Sequences of the global batch that a rank takes, one range of B sequences per micro-batch. Sums are added first over
/// the s ranks that share a replica, then over replicas, and then over micro-batches; what is added first must be
/// adjacent in the global batch. Tensor-parallel ranks of the same replica and shard take the same sequences.
///
///     B = 1, s = 2, two replicas      replica 0   replica 1
///     micro-batch 0                   0     1     2     3
///     micro-batch 1                   4     5     6     7
///
/// @param batch  G sequences, in micro-batches of B a rank; B times the number of data ranks divides G.
/// @param place  of the rank.
/// @return       G / (B times data ranks) ranges, in ascending order.
std::vector<Range> sequences_of_step(const BatchShape& batch, const ShardingPlace& place);

/// Sequences of all data ranks in the micro-batch in which this rank takes @p own.
Range of_all_data_ranks(Range own, const ShardingPlace& place);

/// The elements of a rank's shards that it counts, so that each element of the model counts once in a replica of the
/// model state: in the norm, in a checkpoint and in the digest. Tensor-parallel ranks have their own shards of
/// divided tensors, and the same shards of replicated ones, of which tensor-parallel rank 0 counts all.
/// @param table  of this tensor-parallel rank.
/// @param part   which tensor-parallel rank it is, of how many.
/// @param own    this rank's shards, ranges of the table's flat vector. Shards end anywhere inside a tensor.
/// @return       ranges within own, none of them empty, which cover every counted element once.
std::vector<Range> counted_elements(const ParameterTable& table, Part part, const std::vector<Range>& own);

}  // namespace rankwise
