// The planner's memory and parameters beside what papers and logs say.

#include <array>
#include <cmath>

#include <fmt/format.h>

#include "lessons/17_choose_a_layout/memory.hpp"
#include "lessons/17_choose_a_layout/sizes.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

/// GPT of BigScience's experiments: sequences of 1024, vocabulary padded for four parts.
ModelConfig bigscience(std::int64_t layers, std::int64_t channels)
{
  return {"bigscience", layers, 32, channels, 1024, 50688};
}

/// A small job of the lessons, in f32 on CPUs.
Job small_job()
{
  return {.model = {"small", 4, 4, 32, 32, 256},
          .global_batch = 16,
          .system = System::rankwise,
          .device = DeviceKind::cpu,
          .half = false};
}

}  // namespace

TEST_CASE("parameters of a stage: those that Megatron-LM's logs name")
{
  // BigScience, gpt2-meg logs of June 2021: "number of parameters on (tensor, pipeline) model parallel rank".
  CHECK(parameters_of_stage(bigscience(40, 6144), 4, 4, 0) == 1217086464);
  CHECK(parameters_of_stage(bigscience(40, 6144), 4, 4, 3) == 1210807296);
  CHECK(parameters_of_stage(bigscience(48, 7168), 4, 8, 1) == 925177344);
  CHECK(parameters_of_stage(bigscience(64, 9216), 4, 16, 15) == 1136305152);
  CHECK(parameters_of_stage(bigscience(64, 16384), 4, 64, 0) == 1029828608);
  CHECK(parameters_of_stage(bigscience(64, 16384), 4, 64, 63) == 1013084160);
}

TEST_CASE("parameters of all stages and parts add up to the model's, and the copy of the embedding")
{
  const ModelConfig model = PlannedModel{.preset = "22b"}.config();
  CHECK(parameters_of_stage(model, 1, 1, 0) == model.parameters());
  std::int64_t sum = 0;
  for (std::int64_t stage = 0; stage < 4; ++stage) sum += parameters_of_stage(model, 1, 4, stage);
  CHECK(sum == model.parameters() + model.vocabulary * model.channels);
  CHECK(PlannedModel{.preset = "175b"}.config().parameters() == 174604259328 + (51200 - 50257) * 12288);
}

TEST_CASE("state_bytes: every cell of ZeRO's Table 1")
{
  // Rajbhandari et al. 2020, Table 1: GB of model states a device, by stage, for 7.5, 128 and 1000 billion parameters. The cells
  // of the latter two are cut off behind the point, not rounded.
  struct Row {
    double d;
    std::array<double, 9> gigabytes;
  };
  const std::array<Row, 6> rows{{{1, {120, 120, 120, 2048, 2048, 2048, 16000, 16000, 16000}},
                                 {4, {52.5, 41.3, 30, 896, 704, 512, 7000, 5500, 4000}},
                                 {16, {35.6, 21.6, 7.5, 608, 368, 128, 4750, 2875, 1000}},
                                 {64, {31.4, 16.6, 1.88, 536, 284, 32, 4187, 2218, 250}},
                                 {256, {30.4, 15.4, 0.47, 518, 263, 8, 4046, 2054, 62.5}},
                                 {1024, {30.1, 15.1, 0.12, 513, 257, 2, 4011, 2013, 15.6}}}};
  const std::array<double, 3> billions{7.5, 128, 1000};
  Job job;
  job.system = System::deepspeed;
  for (const Row& row : rows)
    for (std::size_t size = 0; size < 3; ++size)
      for (int stage = 1; stage <= 3; ++stage) {
        const double printed = row.gigabytes[3 * size + static_cast<std::size_t>(stage) - 1];
        const double bytes = state_bytes(job, billions[size] * 1e9, stage, row.d) / 1e9;
        INFO(billions[size] << " billion, d = " << row.d << ", ZeRO-" << stage);
        double digit = 1;  // of the last digit that is printed
        while (std::abs(printed / digit - std::round(printed / digit)) > 1e-9) digit /= 10;
        const double rounded = std::round(bytes / digit + 1e-9) * digit,
                     cut = std::floor(bytes / digit + 1e-9) * digit;
        CHECK((std::abs(rounded - printed) < digit / 10 || (size > 0 && std::abs(cut - printed) < digit / 10)));
      }
}

TEST_CASE("layer_activation_bytes: Korthikanti's Table 2 for the 22B model")
{
  // T b C (34 + 5 H T / C) without any division: 48 layers, 64 heads, 6144 channels, 2048 tokens, micro-batches of 4.
  const Job job{.model = PlannedModel{.preset = "22b"}.config(), .system = System::megatron};
  const double row = 2048.0 * 4 * 6144, scores = 5.0 * 64 * 2048 / 6144;
  PlannedLayout layout{.micro_batch = 4};
  CHECK(layer_activation_bytes(job, layout) == row * (34 + scores));
  layout.tp = 8;
  CHECK(layer_activation_bytes(job, layout) == row * (10 + 24.0 / 8 + scores / 8));
  layout.sequence_parallel = true;
  CHECK(layer_activation_bytes(job, layout) == row * (34.0 / 8 + scores / 8));
  layout.recompute = Recompute::selective;
  CHECK(layer_activation_bytes(job, layout) == row * (34.0 / 8));
  layout.recompute = Recompute::full;
  CHECK(layer_activation_bytes(job, layout) == 2 * row);
}

TEST_CASE("memory_by_stage: of the lessons it is what the rank that needs most would report")
{
  const Job job = small_job();
  int tried = 0;
  for (const PlannedLayout& layout :
       all_layouts(System::rankwise, job.model, {.cp = 0, .optimizer = "search"}, 8, job.global_batch, 8)) {
    if (layout.zero == 3 && layout.tp > 1 && layout.optimizer == OptimizerPlace::disk) continue;
    const LessonRun run = lesson_run(job, layout);
    std::int64_t most = 0;
    for (int rank = 0; rank < 8; ++rank) {
      const Costs costs = run.costs({rank, 8});
      most = std::max(most, in_tier(Tier::device, costs.most).total());
    }
    INFO(describe(layout, job.global_batch) << ": " << run.command);
    CHECK(largest_memory(job, layout).total() == static_cast<double>(most));
    CHECK(least_bytes(job, layout) <= static_cast<double>(most));
    CHECK(largest_memory(job, layout, static_cast<double>(most)).total() == static_cast<double>(most));
    CHECK(largest_memory(job, layout, static_cast<double>(most) - 1).total() == static_cast<double>(most));
    CHECK(memory_by_stage(job, layout, 0).size() == 1);
    ++tried;
  }
  CHECK(tried > 100);
}

TEST_CASE("the sum of the terms grows with what is kept, and shrinks with what is divided")
{
  Job job{.model = PlannedModel{.preset = "22b"}.config(), .global_batch = 64, .system = System::megatron};
  const PlannedLayout one{.dp = 8, .tp = 4, .pp = 2, .zero = 1};
  const double bytes = largest_memory(job, one).total();
  const auto changed = [&](auto&& change) {
    PlannedLayout other = one;
    change(other);
    return largest_memory(job, other).total();
  };
  CHECK(changed([](PlannedLayout& l) { l.zero = 0; }) > bytes);
  CHECK(changed([](PlannedLayout& l) { l.micro_batch = 2; }) > bytes);
  CHECK(changed([](PlannedLayout& l) { l.chunks = 2; }) > bytes);
  CHECK(changed([](PlannedLayout& l) { l.sequence_parallel = true; }) < bytes);
  CHECK(changed([](PlannedLayout& l) { l.recompute = Recompute::selective; }) < bytes);
  CHECK(changed([](PlannedLayout& l) { l.recompute = Recompute::full; }) < bytes);
  CHECK(changed([](PlannedLayout& l) { l.tp = 8, l.dp = 4; }) < bytes);
}
