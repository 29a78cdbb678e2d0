// Times whole training steps of one model beside what the machine can do at best, all of it in turns; prints JSON.
//
//   build/tests/training_step --model=gpt2 --batch=4 --sequence=64 --rounds=12
//
// scripts/bench/bench.py runs it and makes tables of what it prints.

#include <memory>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "common/messages/program.hpp"
#include "tests/bench/allocation_count.hpp"
#include "tests/bench/machine_rates.hpp"
#include "tests/bench/training.hpp"

namespace rankwise {
namespace {

// ---- Options ---------------------------------------------------------------------------------------------------------

struct Options : TrainingOptions {
  std::int64_t rounds = 5;
  std::int64_t gemm_size = 4096;
  std::int64_t array_megabytes = 256;
  bool beside_f32 = false;
  OptionTable table{"training_step", "whole training steps beside what the machine can do at best; prints JSON"};

  Options()
  {
    global_batch = 4;
    declare_step(table, *this);
    table.add("step", "batch", global_batch, "B, sequences a step");
    table.add("step", "micro-batch", micro_batch, "sequences of one pass; 0: all of them");
    table.add("step", "beside-f32", beside_f32, "take steps in f32 too, in turns with those of --precision");
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

// ---- Measurements ----------------------------------------------------------------------------------------------------

constexpr double least_turn_s = 0.25;        // a step shorter than this is taken several times a turn
constexpr double least_gemm_s = 0.03;        // likewise a matrix product
constexpr std::int64_t large_gemm_turn = 4;  // the largest product takes a turn in every fourth round only

nlohmann::json json_of(const std::vector<GemmRate>& rates)
{
  nlohmann::json json = nlohmann::json::array();
  for (const GemmRate& rate : rates)
    json.push_back({{"library", rate.library},
                    {"precision", name_of(rate.type)},
                    {"size", rate.size},
                    {"gflops_per_s", rate.gflops_per_s}});
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

/// Allocations of a step after the first steps, for each number of threads.
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

/// Seconds of a step at each number of threads.
nlohmann::json time_at_threads(Training& training, const std::vector<int>& thread_counts, double least_s)
{
  nlohmann::json seconds = nlohmann::json::array();
  for (const int threads : thread_counts) {
    set_threads(threads);
    seconds.push_back(time_steps(training, training.model, least_s));
  }
  return seconds;
}

/// The rounds: in each, matrix products, bandwidth, and steps at each number of threads take turns; with @p in_f32, steps of
/// that training too.
nlohmann::json measure_rounds(const Options& options, Training& training, Training* in_f32,
                              const std::vector<int>& thread_counts)
{
  std::vector<GemmMeasurement> products;
  for (const std::int64_t part : {4, 2, 1}) products.emplace_back(options.gemm_size / part);
  const std::vector<DType> types =
      options.precision == DType::f32 ? std::vector{DType::f32} : std::vector{DType::f32, DType::bf16};
  for (const DType type : types) products.front().measure(type, 0);  // a library's first product may take longer
  BandwidthMeasurement memory(options.array_megabytes * 1'000'000);

  nlohmann::json rounds = nlohmann::json::array();
  for (std::int64_t round = 0; round < options.rounds; ++round) {
    nlohmann::json json;
    set_threads(1);
    std::vector<GemmRate> rates;
    for (GemmMeasurement& product : products) {
      if (product.size() == options.gemm_size && round % large_gemm_turn != 0) continue;
      for (const DType type : types)
        for (const GemmRate& rate : product.measure(type, least_gemm_s)) rates.push_back(rate);
    }
    json["gemm"] = json_of(rates);
    const Bandwidth bandwidth = memory.measure();
    json["read_GBps"] = bandwidth.read_GBps;
    json["triad_GBps"] = bandwidth.triad_GBps;
    json["update_GBps"] = bandwidth.update_GBps;
    json["step_s"] = time_at_threads(training, thread_counts, least_turn_s);
    if (in_f32 != nullptr) json["f32_step_s"] = time_at_threads(*in_f32, thread_counts, least_turn_s);
    rounds.push_back(json);
  }
  return rounds;
}

/// The same training in f32; empty unless it was asked for.
std::unique_ptr<Training> training_in_f32(const Options& options)
{
  if (!options.beside_f32) return nullptr;
  TrainingOptions in_f32 = options;
  in_f32.precision = in_f32.gradients = DType::f32;
  return std::make_unique<Training>(in_f32);
}

/// Time of a step on one thread, by group of kernels.
nlohmann::json measure_where(Training& training)
{
  set_threads(1);
  return measure_groups(training, least_turn_s);
}

int run(const Options& options)
{
  Training training(options);
  std::vector<int> thread_counts{1};
  if (std::thread::hardware_concurrency() > 1) thread_counts.push_back(2);

  time_at_threads(training, thread_counts, 0);  // touches all memory, makes threads
  nlohmann::json json{{"compiler", RANKWISE_COMPILER},     {"libraries", gemm_libraries()},
                      {"model", json_of(training.config)}, {"precision", name_of(options.precision)},
                      {"batch", options.global_batch},     {"micro_batch", training.shape.B},
                      {"sequence", training.shape.T},      {"threads", thread_counts},
                      {"flops", flops_of(training)}};
  json["allocations"] = measure_allocations(training, thread_counts);
  json["memory"] = measure_memory(training);
  const std::unique_ptr<Training> in_f32 = training_in_f32(options);
  if (in_f32) time_at_threads(*in_f32, thread_counts, 0);
  json["rounds"] = measure_rounds(options, training, in_f32.get(), thread_counts);
  json["where"] = measure_where(training);
  if (in_f32) json["where_f32"] = measure_where(*in_f32);
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
