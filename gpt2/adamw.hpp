#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/partition.hpp"
#include "common/memory/device.hpp"
#include "gpt2/kernels/kernels.hpp"
#include "gpt2/parameter_table.hpp"

/// @file
/// AdamW over any range of a model's parameters, and the learning rate of each step.

namespace rankwise {

/// `--learning-rate-schedule`: what happens after warm-up.
enum class Decay : std::uint8_t { constant, cosine };

/// The learning rate over the steps of a run.
struct LearningRateSchedule {
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

/// Neighbouring elements of a flat vector that decay, or do not: one call of the kernel updates them.
struct DecayRun {
  Range elements;       ///< of the flat vector
  bool decays = false;  ///< whether weight decay applies
};

/// The runs of some elements of a table.
/// @param elements  of its flat vector.
std::vector<DecayRun> decay_runs(const ParameterTable& table, Range elements);

/// What AdamW reads and writes of some elements.
struct AdamWTensors {
  Tensor weights;         ///< (n) f32, updated
  Tensor first_moments;   ///< (n) f32, updated
  Tensor second_moments;  ///< (n) f32, updated
  Tensor gradients;       ///< (n) f32 or bf16, sums over the global batch
  Tensor rounded;         ///< (n) of the weights' rounded copy; empty without one
};

/// Updates some elements of a table.
/// @param kernels   on the stream of the device that holds them.
/// @param runs      decay_runs() of these elements.
/// @param elements  of the flat vector, n of them.
/// @param tensors   of these elements.
/// @param step      the numbers of this update; its weight decay is replaced.
/// @param decay     weight decay, of what decays.
/// @source          Loshchilov and Hutter 2019, algorithm 2.
void update_adamw(const Kernels& kernels, const std::vector<DecayRun>& runs, Range elements,
                  const AdamWTensors& tensors, AdamWStep step, double decay);

/// The two moments of a range of a parameter table's flat vector, and the update of those parameters.
///
/// Parameters in bf16 have 8 bits of precision: an update of less than 1/256 of a parameter would be lost. They are the
/// rounded copy of master weights in f32, which lie here and are what is updated.
/// @source  Micikevicius et al. 2018 (mixed precision training), section 3.1.
class AdamW {
 public:
  /// Moments start at zero, master weights undefined: whoever gives the parameters their values fills master().
  /// @param memory     where the moments and master weights lie, adamw_bytes() of it.
  /// @param stream     of the device that updates.
  /// @param table      the parameters.
  /// @param owned      the elements of the flat vector that this rank updates.
  /// @param precision  of the parameters, f32 or bf16.
  /// @param options    constants.
  /// @throws Error     when there is no room.
  AdamW(const DeviceMemory& memory, Stream& stream, const ParameterTable& table, Range owned, DType precision,
        const AdamWOptions& options);

  /// The weights that are updated, (owned.count) f32: those in front of @p parameters, or with f32 themselves.
  const Tensor& master(const Tensor& parameters) const { return master_ ? master_->tensor() : parameters; }
  /// Makes @p parameters the rounded copy of the master weights; f32 parameters stay as they are.
  void round(const Kernels& kernels, const Tensor& parameters) const;

  /// Updates the parameters of the owned range.
  /// @param kernels         on the stream of the device that holds the moments.
  /// @param parameters      (owned.count) f32 or bf16.
  /// @param gradients       (owned.count) f32 or bf16, sums over the global batch.
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
  Range owned_;
  std::vector<DecayRun> runs_;
  AdamWOptions options_;
  Buffer first_, second_;
  std::optional<Buffer> master_;  // with bf16 parameters
  std::int64_t updates_ = 0;
};

/// Bytes of an AdamW over @p elements parameters: 8 for the moments, with bf16 parameters 4 more for the master weight.
constexpr std::int64_t adamw_bytes(std::int64_t elements, DType precision)
{
  return (precision == DType::f32 ? 8 : 12) * elements;
}

/// What clipping multiplies gradients by so that their norm is at most @p limit: limit / (norm + 1e-6), at most 1.
/// @param norm   of the mean gradient.
/// @param limit  `--clip`; 0 for no clipping.
/// @source  Pascanu, Mikolov and Bengio 2013, algorithm 1.
double clip_factor(double norm, double limit);

}  // namespace rankwise
