#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/collectives/collectives.hpp"
#include "common/session.hpp"
#include "gpt2/checkpoint.hpp"
#include "gpt2/kernels/kernels.hpp"
#include "gpt2/reference_run.hpp"
#include "lessons/04_zero1/segments.hpp"
#include "lessons/04_zero1/sharded_norm.hpp"
#include "lessons/frame/finite.hpp"

/// @file
/// What ranks that own different parts of a model say of it together. All of them make each call; none ever holds more
/// of what the others own than a block of 1 MiB.

namespace rankwise {

/// Copies elements of the flat vector that this rank owns, neighbours within a segment, to a tensor of the group's memory.
using CopyOwn = std::function<void(Range elements, const Tensor& to)>;

/// SHA-256 over all parameters in table order, as parameter_digest() of whole parameters; the same on all ranks.
/// @param segments  all of the model, each element once.
/// @param shards    this rank's.
/// @param room      for a block: f32, where the group's messages lie, block_elements() of the segments.
/// @cost            a broadcast of each block.
std::string parameter_digest(const std::vector<Segment>& segments, const std::vector<Shard>& shards,
                             const Tensor& room, Group& group);
/// The same where this rank's parameters are not all there at a time.
/// @param table     all parameters.
/// @param copy_own  gives those of this rank, f32.
std::string parameter_digest(const ParameterTable& table, const std::vector<Segment>& segments,
                             const CopyOwn& copy_own, const Tensor& room, Group& group);

/// The parameters of all shards of this rank on the host, one shard behind the other.
/// @param stream  of the device that they lie on.
std::vector<float> to_host(Stream& stream, const std::vector<Shard>& shards);

/// The run to compare with, made by rank 0; nothing on the other ranks, which wait.
ReferenceRun reference_run_on_rank_0(const Session& session, const TrainingOptions& options,
                                     const std::shared_ptr<const TokenSource>& text);

/// How far the parameters of all ranks are from a reference that rank 0 has; the same on all ranks.
/// @param table       all parameters.
/// @param segments    all of the model, each element once.
/// @param parameters  of this rank's segments, one behind the other.
/// @param reference   of all elements, tensor by tensor in the order of the table; not looked at on the other ranks.
/// @param room        as for parameter_digest().
/// @cost              a broadcast of each block.
ParameterDeviation parameter_deviation(const ParameterTable& table, const std::vector<Segment>& segments,
                                       std::span<const float> parameters, std::span<const float> reference,
                                       const Tensor& room, Group& group);

/// Writes the shards of all ranks into the checkpoint that rank 0 has created, one rank after the other.
/// @param path    as for create_checkpoint().
/// @param stream  of the device that they lie on.
/// @failure       Error; the others wait until abort_job() ends them.
void write_in_turn(const Session& session, const std::string& path, Stream& stream,
                   const std::vector<Shard>& shards);

}  // namespace rankwise
