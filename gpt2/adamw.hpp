#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "common/base/partition.hpp"
#include "common/memory/device.hpp"
#include "gpt2/kernels/kernels.hpp"
#include "gpt2/parameter_table.hpp"

/// @file
/// AdamW over any range of a model's parameters, and the learning rate schedule.

namespace rankwise {

/// `--learning-rate-schedule`: what happens after warm-up.
enum class Decay : std::uint8_t { constant, cosine };

/// The learning rate over the steps of a run.
struct LearningRateSchedule {
  double peak = 1e-3;             ///< rate at the end of warm-up
  double least = 0;               ///< rate at the last step with Decay::cosine
  std::int64_t warmup = 0;        ///< steps of linear growth
  std::int64_t steps = 1;         ///< steps of the whole run
  Decay decay = Decay::constant;  ///< shape of the schedule after warm-up

  /// The learning rate of step @p step, 0 <= step < steps.
  /// @source  Loshchilov and Hutter 2017 (SGDR), equation 5, without restarts.
  double at(std::int64_t step) const;
};

/// The constants of AdamW.
struct AdamWOptions {
  double beta1 = 0.9;         ///< decay of the first moment
  double beta2 = 0.95;        ///< decay of the second moment
  double epsilon = 1e-8;      ///< added to the root of the second moment
  double weight_decay = 0.1;  ///< weight decay of matrices; all other parameters do not decay
};

/// Contiguous elements of a flat vector that all decay or all do not, so that one kernel call updates them.
struct DecayRun {
  Range elements;       ///< elements of the flat vector
  bool decays = false;  ///< true if weight decay applies
};

/// Divides a range of a table's elements into runs with and without weight decay. Frozen tensors are in none.
/// @param elements  range of its flat vector.
std::vector<DecayRun> decay_runs(const ParameterTable& table, Range elements);

/// The tensors that AdamW reads and writes for n elements.
struct AdamWTensors {
  Tensor weights;         ///< (n) f32, updated
  Tensor first_moments;   ///< (n) f32, updated
  Tensor second_moments;  ///< (n) f32, updated
  Tensor gradients;       ///< (n) f32 or bf16, sums over the global batch
  Tensor rounded;         ///< (n) rounded copy of the weights; empty without one
};

/// Updates a range of a table's elements.
/// @param kernels   kernels on the stream of the device that holds the tensors.
/// @param runs      decay_runs() of these elements.
/// @param elements  n elements of the flat vector.
/// @param tensors   the tensors of these elements.
/// @param step      constants of this update; its weight decay is replaced.
/// @param decay     weight decay of the parameters that decay.
/// @source          Loshchilov and Hutter 2019, algorithm 2.
void update_adamw(const Kernels& kernels, const std::vector<DecayRun>& runs, Range elements,
                  const AdamWTensors& tensors, AdamWStep step, double decay);

/// Called before an update with the gradients of each updated range and the constants of the update, when nothing has
/// changed yet.
using BeforeUpdate = std::function<void(const std::vector<Tensor>& gradients, const AdamWStep& step)>;

/// The two moments of a range of a parameter table's flat vector, and the update of those parameters.
///
/// Parameters in bf16 have 8 bits of precision: an update of less than 1/256 of a parameter would be lost.
/// Therefore master weights in f32 are stored here and updated, and the parameters are their rounded copy.
/// @source  Micikevicius et al. 2018 (mixed precision training), section 3.1.
class AdamW {
 public:
  /// Moments start at zero. Master weights start undefined: callers that set the parameters also fill master().
  /// @param memory     memory of the device for moments and master weights; adamw_bytes() of it are allocated.
  /// @param stream     stream of the device that updates.
  /// @param table      the parameters.
  /// @param owned      elements of the flat vector that this rank updates.
  /// @param precision  type of the parameters, f32 or bf16.
  /// @param options    constants.
  /// @throws Error     when there is not enough memory.
  AdamW(const DeviceMemory& memory, Stream& stream, const ParameterTable& table, Range owned, DType precision,
        const AdamWOptions& options);

  /// The weights that are updated, (owned.count) f32: the master weights, or with f32 @p parameters themselves.
  const Tensor& master(const Tensor& parameters) const { return master_ ? master_->tensor() : parameters; }
  /// Rounds the master weights to @p parameters; does nothing with f32.
  void round(const Kernels& kernels, const Tensor& parameters) const;

  /// Updates the parameters of the owned range.
  /// @param kernels         kernels on the stream of the device that holds the moments.
  /// @param parameters      (owned.count) f32 or bf16.
  /// @param gradients       (owned.count) f32 or bf16, sums over the global batch.
  /// @param learning_rate   learning rate of this step.
  /// @param gradient_scale  factor of the gradients: the clipping factor over the number of valid tokens.
  void step(const Kernels& kernels, const Tensor& parameters, const Tensor& gradients, double learning_rate,
            double gradient_scale);

  /// Sets a function that is called before each update.
  void before_update(BeforeUpdate call) { before_update_ = std::move(call); }
  /// The constants of the next update; see step().
  AdamWStep next(double learning_rate, double gradient_scale) const;

  /// The first moments, (owned.count) f32.
  const Tensor& first_moments() const { return first_.tensor(); }
  /// The second moments, (owned.count) f32.
  const Tensor& second_moments() const { return second_.tensor(); }
  /// Updates made so far.
  std::int64_t updates() const { return updates_; }
  /// Resumes after @p updates updates, whose moments the caller has filled in.
  void resume(std::int64_t updates) { updates_ = updates; }

 private:
  Range owned_;
  std::vector<DecayRun> runs_;
  AdamWOptions options_;
  Buffer first_, second_;
  std::optional<Buffer> master_;  // with bf16 parameters
  BeforeUpdate before_update_;
  std::int64_t updates_ = 0;
};

/// Bytes of AdamW over @p elements parameters: 8 each for the moments, and with bf16 4 more for the master weight.
constexpr std::int64_t adamw_bytes(std::int64_t elements, DType precision)
{
  return (precision == DType::f32 ? 8 : 12) * elements;
}

/// The factor by which clipping scales gradients so that their norm is at most @p limit: limit / (norm + 1e-6), at
/// most 1.
/// @param norm   norm of the mean gradient.
/// @param limit  `--clip`; 0 for no clipping.
/// @source  Pascanu, Mikolov and Bengio 2013, algorithm 1.
double clip_factor(double norm, double limit);

}  // namespace rankwise
