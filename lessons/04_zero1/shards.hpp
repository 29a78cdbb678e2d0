#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/collectives/collectives.hpp"
#include "gpt2/checkpoint.hpp"
#include "gpt2/kernels/kernels.hpp"
#include "gpt2/reference_run.hpp"
#include "lessons/04_zero1/segments.hpp"

/// @file
/// What ranks that own different parts of a model say of it together. All of them make each call; none ever holds more
/// of what the others own than a block of 1 MiB.

namespace rankwise {

/// SHA-256 over all parameters in table order, as parameter_digest() of whole parameters; the same on all ranks.
/// @param memory    where messages lie: a block of communication while the call lasts.
/// @param stream    of that device.
/// @param segments  all of the model, each element once.
/// @param shards    this rank's of them, in their order.
/// @cost            a broadcast of each block.
std::string parameter_digest(const DeviceMemory& memory, Stream& stream, const std::vector<Segment>& segments,
                             const std::vector<Shard>& shards, Group& group);

/// How far the parameters of all ranks are from those of a reference run, which only rank 0 has made.
/// @param memory      where messages lie: a block of communication while the call lasts.
/// @param stream      of that device.
/// @param segments    all of the model, each element once.
/// @param parameters  of this rank's segments, in their order.
/// @param reference   of all elements; empty on the other ranks.
/// @cost              a broadcast of each block.
ParameterDeviation parameter_deviation(const DeviceMemory& memory, Stream& stream,
                                       const std::vector<Segment>& segments,
                                       const std::vector<std::vector<float>>& parameters,
                                       std::span<const float> reference, Group& group);

/// Ends the run on all ranks unless loss and gradient are finite.
/// @param loss, gradient_norm  the same on all ranks.
/// @param shards               what this rank owns.
/// @param gradients            of each shard.
/// @throws Error  the same on all ranks: the step and the first tensor whose gradient or else parameter is not finite.
void check_finite(std::int64_t step, double loss, double gradient_norm, const Kernels& kernels,
                  const std::vector<Shard>& shards, const std::vector<Tensor>& gradients, Group& group);

}  // namespace rankwise
