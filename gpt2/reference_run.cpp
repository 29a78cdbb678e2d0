#include "gpt2/reference_run.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "gpt2/gradient_sum.hpp"
#include "gpt2/model.hpp"

namespace rankwise {

ReferenceRun reference_run(const TrainingOptions& options, const std::shared_ptr<const TokenSource>& text)
{
  const ModelConfig config = options.config();
  const std::int64_t G = options.global_batch;
  const ActivationShape shape{.type = DType::f32, .B = 1, .T = options.batch(G).sequence};
  const Loader loader(text, options.loader_options());
  const LearningRateSchedule schedule = options.schedule_over(loader);

  const std::unique_ptr<Device> device = make_device(options.device);
  const std::unique_ptr<Stream> stream = device->make_stream();
  MemoryLedger ledger;
  const DeviceMemory memory{device.get(), &ledger};
  const std::unique_ptr<Kernels> kernels = Arithmetic(Sums::exact).make_kernels(memory, *stream);
  const ParameterTable table(config);
  const Model model({config, kernels.get(), {}, options.dropout, options.seed});
  const Buffer parameters(memory, Category::parameters, shape.type, {table.elements()}, "reference parameters");
  const ModelTensors weights = model_tensors(table, parameters.tensor());
  const std::unique_ptr<GradientSum> gradients =
      make_tree_sum(*kernels, *stream, memory, gradient_layout(table, shape.type));
  AdamW adamw(memory, *stream, table, {0, table.elements()}, shape.type, options.adamw);
  const Workspace work(memory, config, shape);
  const Activations kept(memory, config, shape, work);
  initialize_parameters(*stream, parameters.tensor(), table, config, options.seed);

  ReferenceRun run;
  Batch host_batch;
  for (std::int64_t step = 0; step < options.compare; ++step) {
    LossSum loss;
    gradients->clear();
    for (std::int64_t g = 0; g < G; ++g) {
      const Range sequence{g, 1};
      loader.load(step, sequence, host_batch);
      const MicroBatch batch = place(kept, *stream, host_batch, sequence, step);
      const GradientTensors d = gradients->begin(sequence);
      loss += forward_backward(model, weights, model_tensors(table, d.flat, d.tied), kept, work, *stream, batch);
      gradients->end(sequence);
    }
    const Tensor gradient = gradients->total();
    const auto valid_tokens = static_cast<double>(loss.valid_tokens);
    const double norm = std::sqrt(kernels->squared_norm(gradient).value()) / valid_tokens;
    check(std::isfinite(loss.mean()) && std::isfinite(norm),
          fmt::format("--compare={}: step {} of the reference run has loss {} and gradient norm {}",
                      options.compare, step, loss.mean(), norm));
    adamw.step(*kernels, parameters.tensor(), gradient, schedule.at(step),
               clip_factor(norm, options.clip) / valid_tokens);
    run.losses.push_back(loss.mean());
  }
  run.parameters = to_host<float>(*stream, parameters.tensor());
  return run;
}

double loss_deviation(std::span<const double> losses, std::span<const double> reference)
{
  check(losses.size() == reference.size(), "the losses to compare are not of the reference run's steps");
  double largest = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const double relative = std::abs(losses[i] - reference[i]) / std::abs(reference[i]);
    if (relative > largest || std::isnan(relative)) largest = relative;  // NaN is kept
  }
  return largest;
}

double ParameterDeviation::relative() const
{
  return std::sqrt(squared_difference.value() / squared_norm.value());
}

ParameterDeviation parameter_deviation(std::span<const float> parameters, std::span<const float> reference)
{
  check(parameters.size() == reference.size(), "the parameters to compare are not the reference run's elements");
  constexpr double least = 0x1p-80;  // the unit of ExactScalar: a smaller square would count as no difference
  ParameterDeviation sums;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const double expected = reference[i], difference = parameters[i] - expected;
    if (parameters[i] != reference[i]) sums.squared_difference.add(std::max(difference * difference, least));
    sums.squared_norm.add(expected * expected);
  }
  return sums;
}

}  // namespace rankwise
