// An oracle for lesson 01: the same training, written once more in the plainest way, with one micro-batch per step.
//
//   training_loop STEPS      nano on the embedded corpus, exact sums, and the options of `Oracle` in
//                            tests/lessons/01/test_01_single_device.py; prints loss, grad_norm, validation and digest
//                            as the report has them

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "data/corpus.hpp"
#include "gpt2/adamw.hpp"
#include "gpt2/gradient_sum.hpp"
#include "gpt2/model.hpp"

using namespace rankwise;

namespace {

/// The mean loss over the validation windows, one after the other and without dropout.
double validate(const Model& model, const ModelTensors& weights, const DeviceMemory& memory, Stream& stream,
                const Loader& loader)
{
  const ActivationShape shape{.B = 1, .T = model.context.config.context};
  const Workspace work(memory, model.context.config, shape);
  const Activations kept(memory, model.context.config, shape, work);
  LossSum loss;
  Batch window;
  for (std::int64_t i = 0; i < loader.windows(); ++i) {
    loader.load_in_order({i, 1}, window);
    MicroBatch batch = place(kept, stream, window, {0, 1}, 0);
    batch.training = false;
    loss += forward(model, weights, kept, work, batch);
  }
  return loss.mean();
}

}  // namespace

int main(int, char** argv)
{
  constexpr std::int64_t G = 16, prefix = 9, warmup = 2;
  constexpr double peak = 2e-3, clip = 0.5;
  constexpr std::uint32_t seed = 5;
  ModelConfig config = preset("nano");
  config.mask = Mask::parse("prefix:9");

  const auto device = make_cpu_device();
  const auto stream = device->make_stream();
  const auto kernels = make_reference_kernels();
  MemoryLedger ledger;
  const DeviceMemory memory{device.get(), &ledger};
  const ParameterTable table(config);
  const Model model({config, kernels, {}, 0.1, seed});
  const ActivationShape shape{.B = G, .T = config.context};
  const Workspace work(memory, config, shape);
  const Activations kept(memory, config, shape, work);
  const Buffer parameters(memory, Category::parameters, DType::f32, {table.elements()}, "parameters");
  initialize_parameters(*stream, parameters.tensor(), table, config, seed);
  const auto sum = make_tree_sum(kernels, *stream, memory, gradient_layout(table, DType::f32));
  AdamW adamw(memory, *stream, table, {0, table.elements()}, DType::f32, {.weight_decay = 0.2});
  const Tokens tokens = embedded_corpus();
  const LoaderOptions order{.T = config.context, .global_batch = G, .seed = seed, .uncounted_prefix = prefix - 1};
  const Loader loader(tokens.train, order), validation(tokens.validation, order);
  const std::int64_t steps = std::atoi(argv[1]);

  nlohmann::json document;
  Batch batch;
  for (std::int64_t step = 0; step < steps; ++step) {
    loader.load(step, {0, G}, batch);
    const auto counted = static_cast<double>(
        std::count_if(batch.targets.begin(), batch.targets.end(), [](Token target) { return target >= 0; }));
    sum->clear();
    const GradientTensors d = sum->begin({0, G});
    const LossSum loss = forward_backward(model, model_tensors(table, parameters.tensor()), model_tensors(table, d),
                                          kept, work, *stream, place(kept, *stream, batch, {0, G}, step));
    sum->end({0, G});
    const Tensor gradient = sum->total();
    const double norm = std::sqrt(kernels->squared_norm(gradient).value()) / counted;
    const double rate = peak * std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(warmup + 1));
    adamw.step(kernels, parameters.tensor(), gradient, rate, std::min(1.0, clip / (norm + 1e-6)) / counted);
    document["loss"].push_back(loss.nats.value() / counted);
    document["grad_norm"].push_back(norm);
  }
  const ModelTensors weights = model_tensors(table, parameters.tensor());
  document["validation"] = {{{"step", steps}, {"loss", validate(model, weights, memory, *stream, validation)}}};
  document["digest"] = parameter_digest(*stream, table, parameters.tensor());
  std::puts(document.dump().c_str());
}
