#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/messages/communicator.hpp"
#include "gpt2/files/checkpoint.hpp"
#include "gpt2/reference_run.hpp"

/// @file
/// The model as shards on its ranks, and whole parameters assembled from them block by block. Saving, loading, the
/// digest and the deviation from the reference run need nothing else from a lesson.

namespace rankwise {

/// Kind of access to a shard.
enum class Access : std::uint8_t {
  read,    ///< its values are read
  write,   ///< all of them are written
  update,  ///< some of them are written
};

/// Receives a shard and the stream of the device that holds it.
using UseShard = std::function<void(const Shard& shard, Stream& stream)>;

/// Shards that a rank holds: a list of shards in memory, or shards that are loaded on demand.
struct HeldShards {
  /// Shards in memory.
  /// @param shards  at least one, all of one parameter table.
  /// @param stream  stream of the device that holds them.
  HeldShards(std::vector<Shard> shards, Stream& stream);
  /// Shards in memory, or none.
  HeldShards(const ParameterTable& table, std::vector<Shard> shards, Stream& stream);
  /// Shards that are stored elsewhere.
  HeldShards(const ParameterTable& table, std::vector<Range> ranges,
             std::function<void(Access, const UseShard&)> for_each, std::function<void(Range, const Tensor&)> copy);

  const ParameterTable& table;                                ///< the parameters of the shards
  std::vector<Range> ranges;                                  ///< elements of each shard in the table's flat vector
  std::function<void(Access, const UseShard&)> for_each;      ///< calls a function for each shard in turn
  std::function<void(Range, const Tensor&)> copy_parameters;  ///< copies elements within one range to the host, f32
};

/// Receives a contiguous block of a whole tensor, row by row without padding.
using UseBlock = std::function<void(const Parameter& tensor, Range elements, std::span<const float> values)>;

/// Calls @p use on every rank for all parameters of the model, block by block, in the order of its table. A rank
/// never holds more of the other ranks' shards than one block of about 1 MiB.
/// @param config   sizes of the model.
/// @param owned    shards that this rank owns; within @p replica every element has one owner.
/// @param replica  ranks that together hold one replica of the model; all of them make this call.
/// @cost   an MPI_Allreduce of each block.
void for_each_block(const ModelConfig& config, const HeldShards& owned, const Communicator& replica,
                    const UseBlock& use);

/// SHA-256 of all parameters in the order of the table, as f32 little-endian; the same on all ranks of a replica.
/// Parameters as for for_each_block().
std::string parameter_digest(const ModelConfig& config, const HeldShards& owned, const Communicator& replica);

/// Gathers all parameters on rank 0 of the replica, tensor by tensor without padding. The other ranks get nothing.
std::vector<float> gather_parameters(const ModelConfig& config, const HeldShards& owned,
                                     const Communicator& replica);

/// Deviation of gathered parameters from those of a reference run.
/// @param config      sizes of the model.
/// @param parameters  result of gather_parameters().
/// @param reference   parameters of a ReferenceRun, with padding.
ParameterDeviation deviation_of(const ModelConfig& config, std::span<const float> parameters,
                                std::span<const float> reference);

}  // namespace rankwise
