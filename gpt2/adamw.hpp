#pragma once

#include <cstdint>

#include "common/device.hpp"
#include "common/partition.hpp"
#include "gpt2/kernels/kernels.hpp"
#include "gpt2/parameter_table.hpp"

/// @file
/// AdamW over any range of a model's parameters, and the learning rate of each step.

namespace rankwise {

/// `--learning-rate-schedule`: what happens after warm-up.
enum class Decay : std::uint8_t { constant, cosine };

/// The learning rate over the steps of a run.
struct Schedule {
  double peak = 1e-3;             ///< reached at the end of warm-up
  double least = 0;               ///< reached at the last step with Decay::cosine
  std::int64_t warmup = 0;        ///< steps of linear growth
  std::int64_t steps = 1;         ///< of the whole run
  Decay decay = Decay::constant;  ///< what happens after warm-up

  /// The learning rate of step @p step, 0 <= step < steps.
  /// @source  Loshchilov and Hutter 2017 (SGDR), equation 5, without restarts.
  double at(std::int64_t step) const;
};

/// The constants of AdamW.
struct AdamWOptions {
  double beta1 = 0.9;         ///< decay of the first moment
  double beta2 = 0.95;        ///< decay of the second moment
  double epsilon = 1e-8;      ///< added to the root of the second moment
  double weight_decay = 0.1;  ///< of matrices; everything else does not decay
};

/// The two moments of a range of a parameter table's flat vector, and the update of those parameters.
class AdamW {
 public:
  /// Moments start at zero.
  /// @param memory   where the moments lie, 8 bytes a parameter.
  /// @param stream   of the device that updates.
  /// @param table    the parameters; outlives the optimizer.
  /// @param owned    the elements of the flat vector that this rank updates.
  /// @param options  constants.
  /// @throws Error   when there is no room.
  AdamW(const DeviceMemory& memory, Stream& stream, const ParameterTable& table, Range owned,
        const AdamWOptions& options);

  /// Updates the parameters of the owned range.
  /// @param kernels         on the stream of the device that holds the moments.
  /// @param parameters      (owned.count) f32.
  /// @param gradients       (owned.count) f32, sums over the global batch.
  /// @param learning_rate   of this step.
  /// @param gradient_scale  what gradients are multiplied by: one over the valid tokens, and clipping.
  void step(const Kernels& kernels, const Tensor& parameters, const Tensor& gradients, double learning_rate,
            double gradient_scale);

  /// The first moments, (owned.count) f32.
  const Tensor& first_moments() const { return first_.tensor(); }
  /// The second moments, (owned.count) f32.
  const Tensor& second_moments() const { return second_.tensor(); }
  /// Updates made so far.
  std::int64_t updates() const { return updates_; }
  /// Goes on after @p updates updates whose moments somebody has filled in.
  void resume(std::int64_t updates) { updates_ = updates; }

 private:
  const ParameterTable& table_;
  Range owned_;
  AdamWOptions options_;
  Buffer first_, second_;
  std::int64_t updates_ = 0;
};

/// What clipping multiplies gradients by so that their norm is at most @p limit: limit / (norm + 1e-6), at most 1.
/// @param norm   of the mean gradient.
/// @param limit  `--clip`; 0 for no clipping.
/// @source  Pascanu, Mikolov and Bengio 2013, algorithm 1.
double clip_factor(double norm, double limit);

}  // namespace rankwise
