#pragma once

#include <cstdint>
#include <memory>
#include <random>

#include <nlohmann/json.hpp>

#include "common/memory/device.hpp"
#include "gpt2/adamw.hpp"
#include "gpt2/arithmetic.hpp"
#include "gpt2/model.hpp"
#include "gpt2/training_options.hpp"

/// @file
/// Whole training steps to measure: the data and the step of lesson 01, without a text.

namespace rankwise {

/// Declares the options that say what a step is: model, tokens of a sequence, precision.
void declare_step(OptionTable& table, TrainingOptions& options);

/// The data of lesson 01, with random tokens instead of a text.
struct Training {
  /// Parameters have their initial values.
  /// @param o  as check_options() has passed them.
  /// @throws Error  when memory runs out.
  explicit Training(const TrainingOptions& o);

  TrainingOptions options;                                                 ///< what was asked for
  ModelConfig config = options.config();                                   ///< L, H, C, V
  ActivationShape shape = options.activation_shape(options.global_batch);  ///< of one micro-batch

  MemoryLedger ledger;                                           ///< counts every buffer below
  std::unique_ptr<Device> device = make_device(options.device);  ///< holds all tensors
  std::unique_ptr<Stream> stream = device->make_stream();        ///< the order in which it works
  DeviceMemory memory{device.get(), &ledger};                    ///< the device's memory, counted
  Arithmetic arithmetic{options.arithmetic, options.tf32};       ///< the order of sums
  Kernels kernels = arithmetic.make_kernels(memory, *stream);    ///< what the model computes with

  std::mt19937 generator{1};  ///< of tokens
  Batch host_batch;           ///< the tokens of every micro-batch

  ParameterTable table{config};  ///< what stands where in the flat vectors
  Buffer parameters{memory, Category::parameters, shape.type, {table.elements()}, "parameters"};  ///< (P)
  ModelTensors weights = model_tensors(table, parameters.tensor());                               ///< views of them
  std::unique_ptr<GradientSum> gradients =                                                        ///< (P)
      arithmetic.make_gradient_sum(kernels, *stream, memory, gradient_layout(table, options.gradients));
  AdamW adamw{memory, *stream, table, {0, table.elements()}, shape.type, options.adamw};  ///< moments
  Model model{{config, kernels, {}, 0, options.seed}};                                    ///< the chain
  Workspace work{memory, config, shape};          ///< scratch of both passes
  Activations kept{memory, config, shape, work};  ///< from a forward pass to its backward pass
};

/// Bytes of a Training, from the sizes alone.
std::int64_t training_bytes(const TrainingOptions& options);

/// Seconds that a step took.
struct StepTime {
  double clearing_s = 0;  ///< until the gradients were zero
  double total_s = 0;     ///< all of it
};

/// One step, as lesson 01 takes it: gradients are cleared, forward and backward pass, gradient norm, AdamW. Tokens are new
/// in each; nothing can be learned from them, so that the loss stays near ln V.
/// @param model          of the training, with its kernels or others on its stream.
/// @param wait_for_each  whether the stream is waited for when the gradients are cleared, so that clearing_s means it.
/// @throws Error  when loss or gradient are not finite.
StepTime train_step(Training& training, const Model& model, bool wait_for_each = false);

/// Mean seconds of as many steps as last @p least_s together, at least one.
double time_steps(Training& training, const Model& model, double least_s);

/// Where the time of steps goes: of as many as last @p least_s together, calls, seconds, least work and allocations of each
/// group of kernels in one of them.
/// @return  {steps, step_s, groups: [{name, calls, seconds, queued_s, flops, bytes, operator_new, malloc}]}.
nlohmann::json measure_groups(Training& training, double least_s);

/// Operations of one step: by PaLM's count, and without what the causal mask hides of T x T.
/// @return  {model, causal}.
nlohmann::json flops_of(const Training& training);

/// {name, parameters, layers, heads, channels, context, vocabulary}.
nlohmann::json json_of(const ModelConfig& config);

}  // namespace rankwise
