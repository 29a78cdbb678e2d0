#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/messages/communicator.hpp"
#include "gpt2/checkpoint.hpp"
#include "gpt2/reference_run.hpp"

/// @file
/// The model as its ranks hold it: shards, and the whole parameters put together from them block by block. Saving, loading,
/// the digest and the deviation from the reference run need nothing else of a lesson.

namespace rankwise {

/// What is done with a shard.
enum class Access : std::uint8_t {
  read,    ///< its values are read
  write,   ///< all of them are written
  update,  ///< some of them are written
};

/// Receives a shard and the stream of the device that holds it.
using UseShard = std::function<void(const Shard& shard, Stream& stream)>;

/// Shards that a rank holds. Those that lie in memory are a list; others are brought when they are asked for.
struct HeldShards {
  /// Shards in memory.
  /// @param shards  of one parameter table, at least one.
  /// @param stream  of the device that holds them.
  HeldShards(std::vector<Shard> shards, Stream& stream);
  /// Shards in memory of a table of which this rank may hold none.
  HeldShards(const ParameterTable& table, std::vector<Shard> shards, Stream& stream);
  /// Shards that lie elsewhere.
  HeldShards(const ParameterTable& table, std::vector<Range> ranges,
             std::function<void(Access, const UseShard&)> for_each, std::function<void(Range, const Tensor&)> copy);

  const ParameterTable& table;                                ///< which parameters these are
  std::vector<Range> ranges;                                  ///< elements of the table's flat vector
  std::function<void(Access, const UseShard&)> for_each;      ///< calls a function with one shard after the other
  std::function<void(Range, const Tensor&)> copy_parameters;  ///< copies elements within one range to the host, f32
};

/// Receives some neighbouring elements of a whole tensor, row by row without padding.
using UseBlock = std::function<void(const Parameter& tensor, Range elements, std::span<const float> values)>;

/// Calls @p use on every rank for all parameters of the model, block by block, in the order of its table. No rank ever holds
/// more of the other ranks' shards than a block of about 1 MiB.
/// @param config   sizes of the model.
/// @param owned    what this rank owns; the ranks of @p replica own each element once.
/// @param replica  ranks that hold one copy of the model together; all of them make this call.
/// @cost   an MPI_Allreduce of each block.
void for_each_block(const ModelConfig& config, const HeldShards& owned, const Communicator& replica,
                    const UseBlock& use);

/// SHA-256 over all parameters in the order of the table, as f32 little-endian; the same on all ranks of a replica. The
/// parameters are those of for_each_block().
std::string parameter_digest(const ModelConfig& config, const HeldShards& owned, const Communicator& replica);

/// All parameters on rank 0 of the replica, tensor by tensor without padding; nothing on the others.
std::vector<float> gather_parameters(const ModelConfig& config, const HeldShards& owned,
                                     const Communicator& replica);

/// How far gathered parameters are from those of a reference run.
/// @param config      sizes of the model.
/// @param parameters  as gather_parameters() gives them.
/// @param reference   of ReferenceRun, with padding.
ParameterDeviation deviation_of(const ModelConfig& config, std::span<const float> parameters,
                                std::span<const float> reference);

}  // namespace rankwise
