// Times whole training steps of one model beside what the machine can do at best, all of it in turns; prints JSON.
//
//   build/tests/training_step --model=gpt2 --batch=4 --sequence=64 --rounds=12
//
// scripts/bench.py runs it and makes tables of what it prints.

#include <cmath>
#include <memory>
#include <random>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "common/device.hpp"
#include "common/program.hpp"
#include "common/time_ledger.hpp"
#include "gpt2/adamw.hpp"
#include "gpt2/arithmetic.hpp"
#include "gpt2/model.hpp"
#include "gpt2/training_options.hpp"
#include "tests/bench/allocation_count.hpp"
#include "tests/bench/machine_rates.hpp"
#include "tests/bench/measured_kernels.hpp"

namespace rankwise {
namespace {

// ---- Options ---------------------------------------------------------------------------------------------------------

struct Options : TrainingOptions {
  std::int64_t rounds = 5;
  std::int64_t gemm_size = 4096;
  std::int64_t array_megabytes = 256;
  OptionTable table{"training_step", "whole training steps beside what the machine can do at best; prints JSON"};

  Options()
  {
    global_batch = 4;
    table.add("model", "model", model, "preset: nano, mini, gpt2, gpt2-medium, gpt2-large or gpt2-xl");
    table.add("model", "layers", layers, "L; 0: as the preset has it");
    table.add("model", "heads", heads, "H; 0: as the preset has it");
    table.add("model", "channels", channels, "C; 0: as the preset has it");
    table.add("model", "context", context, "longest sequence; 0: as the preset has it");
    table.add("model", "vocabulary", vocabulary, "V; 0: as the preset has it");
    table.add("step", "batch", global_batch, "B, sequences a step");
    table.add("step", "micro-batch", micro_batch, "sequences of one pass; 0: all of them");
    table.add("step", "sequence", sequence, "T, tokens of a sequence; 0: the context");
    table.add("measurement", "rounds", rounds, "turns that each measurement gets");
    table.add("measurement", "gemm-size", gemm_size,
              "rows of the largest matrix product; a half and a quarter too");
    table.add("measurement", "array-megabytes", array_megabytes, "size of each array of the bandwidth measurement");
  }
};

/// Refuses what cannot be done.
void check(const Options& options)
{
  check_options(options, {});
  struct Least {
    const char* name;
    std::int64_t value, least;
  };
  for (const auto& [name, value, least] :
       {Least{"rounds", options.rounds, 1}, Least{"gemm-size", options.gemm_size, 4},
        Least{"array-megabytes", options.array_megabytes, 1}})
    if (value < least)
      throw UserError(fmt::format("--{}={} is too small.", name, value),
                      fmt::format("Use --{}={} or more.", name, least));
}

// ---- Training --------------------------------------------------------------------------------------------------------

/// What lesson 01 holds, with random tokens for a text.
struct Training {
  explicit Training(const Options& o) : options(o)
  {
    initialize_parameters(*stream, parameters.tensor(), table, config, options.seed);
  }

  const Options& options;
  ModelConfig config = options.config();
  ActivationShape shape = options.activation_shape(options.global_batch);

  MemoryLedger ledger;
  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<Stream> stream = device->make_stream();
  DeviceMemory memory{device.get(), &ledger};
  Arithmetic arithmetic{Sums::fast};
  std::unique_ptr<Kernels> kernels = arithmetic.make_kernels(memory, *stream);

  std::mt19937 generator{1};
  Batch host_batch{.B = shape.B,
                   .T = shape.T,
                   .inputs = std::vector<Token>(static_cast<std::size_t>(shape.rows())),
                   .targets = std::vector<Token>(static_cast<std::size_t>(shape.rows())),
                   .valid_tokens = shape.rows()};

  ParameterTable table{config};
  Buffer parameters{memory, Category::parameters, shape.type, {table.elements()}, "parameters"};
  ModelTensors weights = model_tensors(table, parameters.tensor());
  std::unique_ptr<GradientSum> gradients =
      arithmetic.make_gradient_sum(*kernels, *stream, memory, gradient_layout(table, DType::f32));
  AdamW adamw{memory, *stream, table, {0, table.elements()}, options.adamw};
  Model model{{config, kernels.get(), {}, 0, options.seed}};
  Workspace work{memory, config, shape};
  Activations kept{memory, config, shape, work};
};

/// Fills the batch with tokens that nothing can be learned from: the loss stays near ln V, as at the start of a run.
void draw_tokens(Training& training)
{
  std::uniform_int_distribution<Token> token(0, static_cast<Token>(training.config.vocabulary - 1));
  for (Token& input : training.host_batch.inputs) input = token(training.generator);
  for (Token& target : training.host_batch.targets) target = token(training.generator);
}

/// Seconds that a step took.
struct StepTime {
  double clearing_s = 0;  ///< until the gradients were zero
  double total_s = 0;     ///< all of it
};

/// One step, as lesson 01 takes it.
StepTime train_step(Training& training, const Model& model)
{
  const Kernels& kernels = *model.context.kernels;
  draw_tokens(training);
  StepTime time;

  const Stopwatch clock;
  training.gradients->clear();
  time.clearing_s = clock.seconds();
  LossSum loss;
  for (std::int64_t first = 0; first < training.options.global_batch; first += training.shape.B) {
    const Range sequences{first, training.shape.B};
    const MicroBatch batch = place(training.kept, *training.stream, training.host_batch, sequences, 0);
    const GradientTensors d = training.gradients->begin(sequences);
    loss += forward_backward(model, training.weights, model_tensors(training.table, d.flat, d.tied), training.kept,
                             training.work, *training.stream, batch);
    training.gradients->end(sequences);
  }

  const Tensor gradient = training.gradients->total();
  const auto valid_tokens = static_cast<double>(loss.valid_tokens);
  const double norm = std::sqrt(kernels.squared_norm(gradient).value()) / valid_tokens;
  rankwise::check(std::isfinite(loss.mean()) && std::isfinite(norm), "the loss or the gradient is not finite");
  training.adamw.step(kernels, training.parameters.tensor(), gradient, training.options.schedule.peak,
                      clip_factor(norm, training.options.clip) / valid_tokens);
  training.stream->synchronise();
  time.total_s = clock.seconds();
  return time;
}

/// Mean seconds of as many steps as last @p least_s together, at least one.
double time_steps(Training& training, int threads, double least_s)
{
  set_threads(threads);
  std::int64_t steps = 0;
  double seconds = 0;
  do {
    seconds += train_step(training, training.model).total_s;
    ++steps;
  } while (seconds < least_s);
  return seconds / static_cast<double>(steps);
}

// ---- Measurements ----------------------------------------------------------------------------------------------------

constexpr double least_turn_s = 0.25;        // a step shorter than this is taken several times a turn
constexpr double least_gemm_s = 0.03;        // likewise a matrix product
constexpr std::int64_t large_gemm_turn = 4;  // the largest product takes a turn in every fourth round only

nlohmann::json json_of(const std::vector<GemmRate>& rates)
{
  nlohmann::json json = nlohmann::json::array();
  for (const GemmRate& rate : rates)
    json.push_back({{"library", rate.library}, {"size", rate.size}, {"gflops_per_s", rate.gflops_per_s}});
  return json;
}

/// Calls, time, least work and allocations of each group of kernels in a step at one thread.
nlohmann::json measure_groups(Training& training)
{
  set_threads(1);
  MeasuredKernels measured(*training.kernels);
  const Model model({training.config, &measured, {}, 0, training.options.seed});
  const MinimalWork clearing{.bytes = 4 * static_cast<double>(training.table.elements())};
  std::int64_t steps = 0;
  double seconds = 0;
  do {
    const StepTime time = train_step(training, model);
    measured.record(KernelGroup::gradient_sum, time.clearing_s, clearing);
    seconds += time.total_s;
    ++steps;
  } while (seconds < least_turn_s);

  const auto n = static_cast<double>(steps);
  nlohmann::json json{{"steps", steps}, {"step_s", seconds / n}, {"groups", nlohmann::json::array()}};
  for (int g = 0; g < kernel_group_count; ++g) {
    const GroupTotal& total = measured.total(static_cast<KernelGroup>(g));
    json["groups"].push_back({{"name", name_of(static_cast<KernelGroup>(g))},
                              {"calls", total.calls / steps},
                              {"seconds", total.seconds / n},
                              {"flops", total.work.flops / n},
                              {"bytes", total.work.bytes / n},
                              {"operator_new", total.allocations.operator_new / steps},
                              {"malloc", total.allocations.malloc / steps}});
  }
  return json;
}

/// Memory at its peak, so far: called after the first steps, before the measurements take memory of their own.
nlohmann::json measure_memory(const Training& training)
{
  rusage usage{};
  rankwise::check(getrusage(RUSAGE_SELF, &usage) == 0, "getrusage() failed");
  const ModelConfig& config = training.config;
  const std::int64_t T = training.shape.T;
  return {{"ledger_peak_bytes", training.ledger.peak_total(Tier::device)},
          {"max_resident_bytes", 1024 * static_cast<std::int64_t>(usage.ru_maxrss)},
          {"stored_attention_bytes", 4 * config.layers * config.heads * training.shape.B * T * T}};
}

/// What a step asks for in memory once the first steps are over, at each number of threads.
nlohmann::json measure_allocations(Training& training, const std::vector<int>& thread_counts)
{
  nlohmann::json json = nlohmann::json::array();
  for (const int threads : thread_counts) {
    set_threads(threads);
    const std::int64_t before_bytes = training.ledger.current(Tier::device).total();
    const AllocationCount before = allocations();
    train_step(training, training.model);
    const AllocationCount calls = allocations() - before;
    const std::int64_t after_bytes = training.ledger.current(Tier::device).total();
    json.push_back({{"operator_new", calls.operator_new},
                    {"malloc", calls.malloc},
                    {"ledger_growth_bytes", after_bytes - before_bytes},
                    {"ledger_peak_growth_bytes", training.ledger.peak_total(Tier::device) - after_bytes}});
  }
  return json;
}

/// The rounds: in each, matrix products, bandwidth, and steps at each number of threads take turns.
nlohmann::json measure_rounds(Training& training, const std::vector<int>& thread_counts)
{
  const Options& options = training.options;
  std::vector<GemmMeasurement> products;
  for (const std::int64_t part : {4, 2, 1}) products.emplace_back(options.gemm_size / part);
  products.front().measure(0);  // a library's first product may take longer
  BandwidthMeasurement memory(options.array_megabytes * 1'000'000);

  nlohmann::json rounds = nlohmann::json::array();
  for (std::int64_t round = 0; round < options.rounds; ++round) {
    nlohmann::json json;
    set_threads(1);
    std::vector<GemmRate> rates;
    for (GemmMeasurement& product : products) {
      if (product.size() == options.gemm_size && round % large_gemm_turn != 0) continue;
      for (const GemmRate& rate : product.measure(least_gemm_s)) rates.push_back(rate);
    }
    json["gemm"] = json_of(rates);
    const Bandwidth bandwidth = memory.measure();
    json["read_GBps"] = bandwidth.read_GBps;
    json["triad_GBps"] = bandwidth.triad_GBps;
    json["update_GBps"] = bandwidth.update_GBps;
    for (const int threads : thread_counts) json["step_s"].push_back(time_steps(training, threads, least_turn_s));
    rounds.push_back(json);
  }
  return rounds;
}

/// Operations of one step: by PaLM's count, and without what the causal mask hides of T x T.
nlohmann::json flops_of(const Training& training)
{
  const std::int64_t T = training.shape.T, R = training.options.global_batch * T, C = training.config.channels;
  const double model = step_flops(training.config, R, T, false);
  const double attention = 12 * static_cast<double>(training.config.layers * C * T) * static_cast<double>(R);
  const double visible = static_cast<double>(T + 1) / static_cast<double>(2 * T);
  return {{"model", model}, {"causal", model - (1 - visible) * attention}};
}

int run(const Options& options)
{
  Training training(options);
  std::vector<int> thread_counts{1};
  if (std::thread::hardware_concurrency() > 1) thread_counts.push_back(2);

  for (const int threads : thread_counts) time_steps(training, threads, 0);  // touches all memory, makes threads
  nlohmann::json json{{"compiler", RANKWISE_COMPILER},
                      {"libraries", gemm_libraries()},
                      {"model",
                       {{"name", training.config.name},
                        {"parameters", training.config.parameters()},
                        {"layers", training.config.layers},
                        {"heads", training.config.heads},
                        {"channels", training.config.channels},
                        {"context", training.config.context},
                        {"vocabulary", training.config.vocabulary}}},
                      {"batch", options.global_batch},
                      {"micro_batch", training.shape.B},
                      {"sequence", training.shape.T},
                      {"threads", thread_counts},
                      {"flops", flops_of(training)}};
  json["allocations"] = measure_allocations(training, thread_counts);
  json["memory"] = measure_memory(training);
  json["rounds"] = measure_rounds(training, thread_counts);
  json["where"] = measure_groups(training);
  fmt::print("{}\n", json.dump(1));
  return exit_success;
}

}  // namespace
}  // namespace rankwise

int main(int argc, char** argv)
{
  using namespace rankwise;
  Options options;
  return run_program(
      argc, argv, options.table, [&](const Session&) { check(options); }, [&](Session&) { return run(options); });
}
