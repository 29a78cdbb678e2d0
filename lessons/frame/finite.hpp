#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "common/collectives/collectives.hpp"
#include "gpt2/checkpoint.hpp"
#include "gpt2/kernels/kernels.hpp"

/// @file
/// The end of a run whose loss or gradient is not finite, where each rank has shards of the model.

namespace rankwise {

/// Ends the run on all ranks unless loss and gradient are finite.
/// @param loss, gradient_norm  the same on all ranks.
/// @param shards               what this rank owns.
/// @param gradients            of each shard.
/// @throws Error  the same on all ranks: the step and the first tensor whose gradient or else parameter is not finite.
void check_finite(std::int64_t step, double loss, double gradient_norm, const Kernels& kernels,
                  const std::vector<Shard>& shards, const std::vector<Tensor>& gradients, Group& group);
/// The same where they are not all there at a time.
/// @param table            all parameters.
/// @param first_of_own     the first element of this rank's that is not finite, counted through all parameters and then
///                         through all their gradients; nothing where all are. Called if loss or gradient are not.
void check_finite(std::int64_t step, double loss, double gradient_norm, const ParameterTable& table,
                  const std::function<std::optional<std::int64_t>()>& first_of_own, Group& group);

}  // namespace rankwise
