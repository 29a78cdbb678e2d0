#include "tests/bench/training.hpp"

#include <cmath>

#include "common/base/error.hpp"
#include "common/base/json.hpp"
#include "common/program/time_ledger.hpp"
#include "tests/bench/measured_kernels.hpp"

namespace rankwise {

void declare_step(OptionTable& table, TrainingOptions& options)
{
  table.add("model", "model", options.model, "preset: nano, mini, gpt2, gpt2-medium, gpt2-large or gpt2-xl");
  table.add("model", "layers", options.layers, "L; 0: as the preset has it");
  table.add("model", "heads", options.heads, "H; 0: as the preset has it");
  table.add("model", "channels", options.channels, "C; 0: as the preset has it");
  table.add("model", "context", options.context, "longest sequence; 0: as the preset has it");
  table.add("model", "vocabulary", options.vocabulary, "V; 0: as the preset has it");
  table.add("step", "sequence", options.sequence, "T, tokens of a sequence; 0: the context");
  table.add_choice<DType>("step", "precision", options.precision, {{"f32", DType::f32}, {"bf16", DType::bf16}},
                          "of parameters and activations");
  table.add_choice<DType>("step", "gradients", options.gradients, {{"f32", DType::f32}, {"bf16", DType::bf16}},
                          "of parameters");
}

Training::Training(const TrainingOptions& o) : options(o)
{
  const std::int64_t sequences = shape.B;
  const auto tokens = static_cast<std::size_t>(sequences * shape.T);
  host_batch = {.B = sequences,
                .T = shape.T,
                .inputs = std::vector<Token>(tokens),
                .targets = std::vector<Token>(tokens),
                .valid_tokens = sequences * shape.T};
  initialize_parameters(*stream, adamw.master(parameters.tensor()), table, config, options.seed);
  adamw.round(kernels, parameters.tensor());
}

std::int64_t training_bytes(const TrainingOptions& options)
{
  const ModelConfig config = options.config();
  const ParameterTable table(config);
  const ActivationShape shape = options.activation_shape(options.global_batch);
  const std::int64_t micro_batches = options.global_batch / shape.B;
  return Arithmetic(options.arithmetic)
             .gradient_bytes(gradient_layout(table, options.gradients), micro_batches)
             .total() +
         bytes_of(options.precision) * table.elements() + adamw_bytes(table.elements(), options.precision) +
         activation_bytes(config, shape) + workspace_bytes(config, shape) + kernel_bytes(options.device);
}

namespace {

/// Fills the batch with tokens that nothing can be learned from.
void draw_tokens(Training& training)
{
  std::uniform_int_distribution<Token> token(0, static_cast<Token>(training.config.vocabulary - 1));
  for (Token& input : training.host_batch.inputs) input = token(training.generator);
  for (Token& target : training.host_batch.targets) target = token(training.generator);
}

}  // namespace

StepTime train_step(Training& training, const Model& model, bool wait_for_each)
{
  const Kernels& kernels = model.context.kernels;
  draw_tokens(training);
  StepTime time;

  const Stopwatch clock;
  training.gradients->clear();
  if (wait_for_each) training.stream->synchronise();
  time.clearing_s = clock.seconds();
  LossSum loss;
  for (std::int64_t first = 0; first < training.options.global_batch; first += training.shape.B) {
    const Range sequences{first, training.shape.B};
    const MicroBatch batch = place(training.kept, *training.stream, training.host_batch, sequences, 0);
    const Stopwatch beginning;  // clears what the kernels add to
    const GradientTensors d = training.gradients->begin(sequences);
    if (wait_for_each) training.stream->synchronise();
    time.clearing_s += beginning.seconds();
    loss += forward_backward(model, training.weights, model_tensors(training.table, d), training.kept,
                             training.work, *training.stream, batch);
    training.gradients->end(sequences);
  }

  const Tensor gradient = training.gradients->total();
  const auto valid_tokens = static_cast<double>(loss.valid_tokens);
  const double norm = std::sqrt(kernels->squared_norm(gradient).value()) / valid_tokens;
  check(std::isfinite(loss.mean()) && std::isfinite(norm), "the loss or the gradient is not finite");
  training.adamw.step(kernels, training.parameters.tensor(), gradient, training.options.schedule.peak,
                      clip_factor(norm, training.options.clip) / valid_tokens);
  training.stream->synchronise();
  time.total_s = clock.seconds();
  return time;
}

double time_steps(Training& training, const Model& model, double least_s)
{
  std::int64_t steps = 0;
  double seconds = 0;
  do {
    seconds += train_step(training, model).total_s;
    ++steps;
  } while (seconds < least_s);
  return seconds / static_cast<double>(steps);
}

nlohmann::json measure_groups(Training& training, double least_s)
{
  MeasuredGroups measured;
  const Kernels kernels = make_measured_kernels(
      training.kernels, measured, training.options.device == DeviceKind::cuda ? training.stream.get() : nullptr);
  const Model model({training.config, kernels, {}, 0, training.options.seed});
  const GradientLayout layout = gradient_layout(training.table, training.options.gradients);
  std::int64_t cleared = layout.elements;
  for (const Range& product : layout.products) cleared -= product.count;
  const MinimalWork clearing{.bytes = static_cast<double>(bytes_of(layout.type) * cleared)};
  std::int64_t steps = 0;
  double seconds = 0;
  do {
    const StepTime time = train_step(training, model, true);
    measured.total(KernelGroup::gradient_sum).add(time.clearing_s, time.clearing_s, clearing, {0, 0});
    seconds += time.total_s;
    ++steps;
  } while (seconds < least_s);

  const auto n = static_cast<double>(steps);
  nlohmann::json json{{"steps", steps}, {"step_s", seconds / n}, {"groups", nlohmann::json::array()}};
  for (int g = 0; g < kernel_group_count; ++g) {
    const GroupTotal& total = measured.total(static_cast<KernelGroup>(g));
    json["groups"].push_back({{"name", name_of(static_cast<KernelGroup>(g))},
                              {"calls", total.calls / steps},
                              {"seconds", total.seconds / n},
                              {"queued_s", total.queued_s / n},
                              {"flops", total.work.flops / n},
                              {"bytes", total.work.bytes / n},
                              {"operator_new", total.allocations.operator_new / steps},
                              {"malloc", total.allocations.malloc / steps}});
  }
  return json;
}

nlohmann::json flops_of(const Training& training)
{
  const std::int64_t T = training.shape.T, R = training.options.global_batch * T, C = training.config.channels;
  const double model = step_flops(training.config, R, T, false);
  const double attention = 12 * static_cast<double>(training.config.layers * C * T) * static_cast<double>(R);
  const double visible = static_cast<double>(T + 1) / static_cast<double>(2 * T);
  return {{"model", model}, {"causal", model - (1 - visible) * attention}};
}

nlohmann::json json_of(const ModelConfig& config)
{
  return {{"name", config.name},
          {"parameters", config.parameters()},
          {"layers", config.layers},
          {"heads", config.heads},
          {"channels", config.channels},
          {"context", config.context},
          {"vocabulary", config.vocabulary}};
}

}  // namespace rankwise
