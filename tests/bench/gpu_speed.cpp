// Times training steps, attention and kernels on a GPU beside what the GPU can do at best, in turns; prints JSON.
//
//   build-gpu/tests/gpu_speed --model=gpt2 --precision=bf16 --rounds=5
//   build-gpu/tests/gpu_speed --part=attention --rounds=1
//
// scripts/bench/gpu_check.py runs it and makes tables of what it prints.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/cuda/devices.hpp"
#include "common/messages/program.hpp"
#include "tests/bench/gpu_rates.hpp"
#include "tests/bench/measured_kernels.hpp"
#include "tests/bench/memory_bound_kernels.hpp"
#include "tests/bench/training.hpp"

namespace rankwise {
namespace {

// ---- Options ---------------------------------------------------------------------------------------------------------

/// The part of the benchmark to run.
enum class Measured : std::uint8_t { all, attention };

struct Options : TrainingOptions {
  std::int64_t attention_batch = 16;
  std::int64_t rounds = 5;
  std::int64_t gemm_size = 8192;
  Bytes copy_bytes{1 << 30};
  double least_turn_s = 0.2;
  Measured measured = Measured::all;
  OptionTable table{"gpu_speed", "training steps beside what a GPU can do at best; prints JSON"};

  Options()
  {
    model = "gpt2";
    precision = DType::bf16;
    device = DeviceKind::cuda;
    declare_step(table, *this);
    table.add("step", "micro-batch", micro_batch, "B, all sequences of a step; 0: as many as fit");
    table.add("measurement", "attention-batch", attention_batch, "sequences, where attention is measured alone");
    table.add("measurement", "rounds", rounds, "turns that each measurement gets");
    table.add("measurement", "gemm-size", gemm_size,
              "rows and columns of the matrix products that steps stand beside");
    table.add("measurement", "copy-bytes", copy_bytes, "size of the copy that kernels stand beside");
    table.add("measurement", "least-turn", least_turn_s, "seconds; what is shorter is done several times a turn");
    table.add_choice<Measured>("measurement", "part", measured,
                               {{"all", Measured::all}, {"attention", Measured::attention}}, "what is measured");
  }
};

/// Refuses what cannot be done.
void check(const Options& options)
{
  struct Least {
    const char* name;
    std::int64_t value, least;
  };
  for (const auto& [name, value, least] :
       {Least{"micro-batch", options.micro_batch, 0}, Least{"attention-batch", options.attention_batch, 1},
        Least{"rounds", options.rounds, 1}, Least{"gemm-size", options.gemm_size, 8},
        Least{"copy-bytes", options.copy_bytes.value, 16}})
    if (value < least)
      throw UserError(fmt::format("--{}={} is too small.", name, value),
                      fmt::format("Use --{}={} or more.", name, least));
  if (!(0 <= options.least_turn_s && options.least_turn_s <= 10))
    throw UserError(fmt::format("--least-turn={} is no time that a turn can last.", options.least_turn_s),
                    "Use 0 to 10 seconds.");
  TrainingOptions one_pass = options;
  one_pass.global_batch = std::max<std::int64_t>(options.micro_batch, 1);
  check_options(one_pass, {});
  check_device(options.device);
}

/// The same with @p B sequences in one pass.
TrainingOptions with_batch(const TrainingOptions& options, std::int64_t B)
{
  TrainingOptions result = options;
  result.global_batch = result.micro_batch = B;
  return result;
}

/// The same in f32.
TrainingOptions in_f32(const TrainingOptions& options)
{
  TrainingOptions result = options;
  result.precision = result.gradients = DType::f32;
  return result;
}

// ---- The largest micro-batch -----------------------------------------------------------------------------------------

/// The micro-batch behind @p B among 1, 2, 4, 8, 16, 24, 32, ...
std::int64_t next_batch(std::int64_t B)
{
  return B < 8 ? std::max<std::int64_t>(1, 2 * B) : B + 8;
}

/// The largest micro-batch for which @p bytes_of_batch gives at most @p capacity; 0 if not even one sequence fits.
template <class BytesOfBatch>
std::int64_t largest_batch(std::int64_t capacity, const BytesOfBatch& bytes_of_batch)
{
  std::int64_t B = 0;
  while (bytes_of_batch(next_batch(B)) <= capacity) B = next_batch(B);
  return B;
}

/// Bytes that are free for trainings: CUDA and its libraries load code when it is first used, and get a 64th.
std::int64_t capacity_for_trainings()
{
  const std::int64_t free_bytes = gpu_facts().free_bytes;
  return free_bytes - free_bytes / 64;
}

// ---- Steps -----------------------------------------------------------------------------------------------------------

/// Bytes of the GPU that are taken by whomever.
std::int64_t bytes_in_use()
{
  const GpuFacts gpu = gpu_facts();
  return gpu.memory_bytes - gpu.free_bytes;
}

/// Rates of the yardsticks now: products in the precision of the step and in f32 and TF32, and copying.
nlohmann::json measure_rates(const GpuRates& rates, const Options& options)
{
  nlohmann::json flops{{"f32", rates.matmul_flops(DType::f32, false, options.least_turn_s)},
                       {"tf32", rates.matmul_flops(DType::f32, true, options.least_turn_s)}};
  if (options.precision == DType::bf16)
    flops["bf16"] = rates.matmul_flops(DType::bf16, false, options.least_turn_s);
  return {{"matmul_flops", flops}, {"copy_bytes_per_s", rates.copy_bytes_per_s(options.least_turn_s)}};
}

/// Rounds of yardsticks and steps.
nlohmann::json measure_steps(Training& training, const GpuRates& rates, const Options& options)
{
  nlohmann::json rounds = nlohmann::json::array();
  for (std::int64_t round = 0; round < options.rounds; ++round) {
    nlohmann::json json = measure_rates(rates, options);
    json["step_s"] = time_steps(training, training.model, options.least_turn_s);
    rounds.push_back(json);
  }
  return rounds;
}

/// The bytes that a training has taken, by the formula, by its ledger, and as the GPU says, less the yardsticks'.
nlohmann::json measure_memory(const Training& training, const GpuRates& rates, std::int64_t capacity)
{
  const std::int64_t planned = training_bytes(training.options), counted = training.ledger.peak_total(Tier::device);
  rankwise::check(planned == counted, "the ledger counts other bytes than were planned");
  const std::int64_t next = training_bytes(with_batch(training.options, next_batch(training.shape.B)));
  return {{"capacity_bytes", capacity},
          {"planned_bytes", planned},
          {"next_planned_bytes", next},
          {"ledger_bytes", counted},
          {"in_use_bytes", bytes_in_use() - rates.held_bytes()}};
}

/// Each kernel that memory bounds: its least traffic, and rounds of its time beside copying.
nlohmann::json measure_kernels(Training& training, const GpuRates& rates, const Options& options)
{
  const std::vector<KernelCase> cases = memory_bound_kernels(training);
  nlohmann::json json;
  for (const KernelCase& kernel : cases)
    json["cases"].push_back({{"name", kernel.name}, {"bytes", work_of(kernel, training).bytes}});
  for (std::int64_t round = 0; round < options.rounds; ++round) {
    nlohmann::json turn{{"copy_bytes_per_s", rates.copy_bytes_per_s(options.least_turn_s)}};
    for (const KernelCase& kernel : cases)
      turn["seconds"][kernel.name] =
          time_calls(*training.stream, options.least_turn_s, [&] { kernel.call(training.kernels); });
    json["rounds"].push_back(turn);
  }
  return json;
}

/// The training that fills the GPU, and what its kernels do.
nlohmann::json measure_training(const GpuRates& rates, const Options& options)
{
  const std::int64_t capacity = capacity_for_trainings();
  const auto bytes = [&](std::int64_t B) { return training_bytes(with_batch(options, B)); };
  const std::int64_t B = options.micro_batch > 0 ? options.micro_batch : largest_batch(capacity, bytes);
  if (B == 0 || bytes(B) > capacity)
    throw UserError(fmt::format("{} sequences need {} bytes, and {} are free.", std::max<std::int64_t>(B, 1),
                                bytes(std::max<std::int64_t>(B, 1)), capacity),
                    "Use a smaller --micro-batch, --sequence or --model.");
  Training training(with_batch(options, B));
  train_step(training, training.model);  // loads what is loaded when it is first used
  nlohmann::json json{{"micro_batch", B},
                      {"flops", flops_of(training)},
                      {"rounds", measure_steps(training, rates, options)},
                      {"memory", measure_memory(training, rates, capacity)},
                      {"where", measure_groups(training, options.least_turn_s)}};
  json["kernels"] = measure_kernels(training, rates, options);
  return json;
}

/// Steps in bf16, in f32 and in f32 with products in TF32, in turns, with as many sequences as fit twice.
nlohmann::json measure_precisions(const Options& options)
{
  const std::int64_t capacity = capacity_for_trainings();
  const auto bytes = [&](std::int64_t B) {
    const TrainingOptions batch = with_batch(options, B);
    return training_bytes(batch) + training_bytes(in_f32(batch)) + gpu_workspace_bytes;
  };
  const std::int64_t fitting = largest_batch(capacity, bytes);
  const std::int64_t B = options.micro_batch > 0 ? std::min(options.micro_batch, fitting) : fitting;
  if (B == 0) return nullptr;
  Training training(with_batch(options, B)), f32(in_f32(with_batch(options, B)));
  const Kernels tf32_kernels = make_cuda_tf32_kernels(f32.memory, *f32.stream);
  const Model tf32({f32.config, tf32_kernels, {}, 0, options.seed});

  nlohmann::json rounds = nlohmann::json::array();
  for (std::int64_t round = -1; round < options.rounds; ++round) {  // what is measured in round -1 is not kept
    const double least_s = round < 0 ? 0 : options.least_turn_s;
    nlohmann::json step_s{{"f32", time_steps(f32, f32.model, least_s)}, {"tf32", time_steps(f32, tf32, least_s)}};
    if (options.precision == DType::bf16) step_s["bf16"] = time_steps(training, training.model, least_s);
    if (round >= 0) rounds.push_back(step_s);
  }
  return {{"micro_batch", B}, {"rounds", rounds}};
}

// ---- Attention -------------------------------------------------------------------------------------------------------

/// Attention of one layer alone, forwards and backwards.
nlohmann::json measure_attention(Device& device, const Options& options)
{
  const ModelConfig config = options.config();
  const std::int64_t B = options.attention_batch, C = config.channels, T = options.activation_shape(1).T;
  const AttentionShape shape{
      .B = B, .T = T, .heads = {0, config.heads}, .D = config.head_channels(), .mask = config.mask};
  MemoryLedger ledger;
  const DeviceMemory memory{&device, &ledger};
  const std::unique_ptr<Stream> stream = device.make_stream();
  const Kernels kernels = make_cuda_kernels(memory, *stream);
  const DType type = options.precision;
  const auto buffer = [&](DType of, const Shape& extents) {
    return Buffer(memory, Category::workspace, of, extents, "attention");
  };
  const Buffer qkv = buffer(type, {B * T, 3 * C}), y = buffer(type, {B * T, C}), dy = buffer(type, {B * T, C}),
               dqkv = buffer(type, {B * T, 3 * C}), log_sum_exp = buffer(DType::f32, {B, config.heads, T});
  for (const Buffer* random : {&qkv, &dy}) fill_with_noise(*stream, random->tensor());

  const auto forward = [&](const Kernels& k) {
    k->attention_forward(y.tensor(), log_sum_exp.tensor(), qkv.tensor(), shape, {});
  };
  const auto backward = [&](const Kernels& k) {
    k->attention_backward(dqkv.tensor(), dy.tensor(), y.tensor(), log_sum_exp.tensor(), qkv.tensor(), shape, {});
  };
  nlohmann::json json{{"B", B}, {"H", config.heads}, {"T", T}, {"D", shape.D}, {"rounds", nlohmann::json::array()}};
  const auto flops = [&](const auto& call) {
    MeasuredGroups measured;
    call(make_measured_kernels(kernels, measured, stream.get()));
    return measured.total(KernelGroup::attention).work.flops;
  };
  json["flops"] = {{"forward", flops(forward)}, {"backward", flops(backward)}};
  for (std::int64_t round = 0; round < options.rounds; ++round)
    json["rounds"].push_back(
        {{"forward_s", time_calls(*stream, options.least_turn_s, [&] { forward(kernels); })},
         {"backward_s", time_calls(*stream, options.least_turn_s, [&] { backward(kernels); })}});
  return json;
}

// ---- All of it -------------------------------------------------------------------------------------------------------

int run(const Options& options)
{
  const std::unique_ptr<Device> device = make_device(DeviceKind::cuda);
  const GpuFacts gpu = gpu_facts();
  nlohmann::json json{{"gpu", {{"name", gpu.name}, {"memory_bytes", gpu.memory_bytes}}},
                      {"model", json_of(options.config())},
                      {"precision", name_of(options.precision)},
                      {"gradients", name_of(options.gradients)},
                      {"sequence", options.activation_shape(1).T},
                      {"gemm_size", options.gemm_size},
                      {"copy_bytes", options.copy_bytes.value}};
  json["attention"] = measure_attention(*device, options);
  if (options.measured == Measured::all) {
    const GpuRates rates(options.gemm_size, options.copy_bytes.value);
    json["training"] = measure_training(rates, options);
    json["precisions"] = measure_precisions(options);
  }
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
