#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "common/collectives/collectives.hpp"
#include "gpt2/files/checkpoint.hpp"
#include "lessons/frame/run.hpp"

/// @file
/// Ends a run whose loss or gradient is not finite, if each rank has shards of the model.

namespace rankwise {

/// Notes the first element of some values that is not finite, unless an earlier one is known.
/// @param[in,out] first  number of the earliest such element so far.
/// @param begin          number of the first value.
void note_not_finite(std::optional<std::int64_t>& first, const Kernels& kernels, const Tensor& values,
                     std::int64_t begin);

/// Ends the run on all ranks unless loss and gradient are finite.
/// @param loss, gradient_norm  the same on all ranks.
/// @param shards               shards that this rank owns.
/// @param gradients            gradients of each shard.
/// @throws Error  the same on all ranks: the step, and the first tensor with a parameter or else a gradient that is
///                not finite.
void check_finite(std::int64_t step, double loss, double gradient_norm, const Kernels& kernels,
                  const std::vector<Shard>& shards, const std::vector<Tensor>& gradients, Group& group);
/// check_finite() with the kernels of a run, which notes the loss and the norm.
void check_finite(Run& run, std::int64_t step, double loss, double gradient_norm, const std::vector<Shard>& shards,
                  const std::vector<Tensor>& gradients, Group& group);
/// check_finite() for shards that are not all in memory at the same time.
/// @param table            all parameters.
/// @param first_of_own     finds the first element of this rank that is not finite, numbered through all parameters
///                         and then through all gradients; nothing if all are finite. Called only if loss or norm
///                         is not.
void check_finite(std::int64_t step, double loss, double gradient_norm, const ParameterTable& table,
                  const std::function<std::optional<std::int64_t>()>& first_of_own, Group& group);

}  // namespace rankwise
