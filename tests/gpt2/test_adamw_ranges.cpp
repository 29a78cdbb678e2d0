// gpt2/adamw.hpp: the optimizer over ranges of the flat vector, the learning rate, clipping.

#include <cmath>
#include <vector>

#include <catch2/catch.hpp>

#include "gpt2/adamw.hpp"
#include "tests/gpt2/testing.hpp"

using namespace rankwise;

namespace {

const ModelConfig tiny{.name = "tiny", .layers = 1, .heads = 2, .channels = 8, .context = 4, .vocabulary = 11};

/// Parameters after three updates when the flat vector is cut into @p N segments with an optimizer each.
std::vector<float> updated(std::int64_t N)
{
  const ParameterTable table(tiny);
  const auto device = make_cpu_device();
  const auto stream = device->make_stream();
  const auto kernels = make_reference_kernels();
  MemoryLedger ledger;
  const DeviceMemory memory{device.get(), &ledger};
  std::vector<float> parameters(static_cast<std::size_t>(table.elements())), gradients(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] = std::sin(0.7f * static_cast<float>(i));
  const Tensor p(parameters.data(), DType::f32, {table.elements()}), g(gradients.data(), DType::f32, p.shape());
  for (std::int64_t r = 0; r < N; ++r) {
    const Range mine = Partition(table.elements(), N).segment(r);
    AdamW adamw(memory, *stream, table, mine, {});
    CHECK(ledger.current(Tier::device)[Category::optimizer] == 8 * mine.count);
    for (int step = 0; step < 3; ++step) {
      for (std::size_t i = 0; i < gradients.size(); ++i)
        gradients[i] = std::cos(0.3f * static_cast<float>(i) + static_cast<float>(step));
      adamw.step(*kernels, p.slice(mine), g.slice(mine), 1e-2, 0.5);
    }
    CHECK(adamw.updates() == 3);
  }
  return parameters;
}

}  // namespace

TEST_CASE("AdamW: segments that cut through tensors update like the whole")
{
  const std::vector<float> whole = updated(1);
  for (const std::int64_t N : {2, 3, 4, 7}) CHECK(updated(N) == whole);
}

TEST_CASE("AdamW: matrices decay, vectors do not")
{
  const ParameterTable table(tiny);
  for (const Parameter& p : table.entries()) {
    const bool vector = p.name.ends_with(".bias") || p.name.find("ln_") != std::string::npos;
    CHECK(p.decays == !vector);
  }
}

TEST_CASE("Schedule: grows over warm-up, then stays or falls along a cosine to its least value")
{
  const Schedule constant{.peak = 1, .warmup = 4, .steps = 20};
  CHECK(constant.at(0) == Approx(0.2));
  CHECK(constant.at(3) == Approx(0.8));
  CHECK(constant.at(4) == 1);
  CHECK(constant.at(19) == 1);

  const Schedule cosine{.peak = 1, .least = 0.1, .warmup = 4, .steps = 25, .decay = Decay::cosine};
  CHECK(cosine.at(4) == Approx(1));
  CHECK(cosine.at(14) == Approx(0.55));
  CHECK(cosine.at(24) == Approx(0.1));
  for (std::int64_t step = 5; step < 25; ++step) CHECK(cosine.at(step) < cosine.at(step - 1));
}

TEST_CASE("Schedule: a run of one step, and one that is all warm-up, have a learning rate")
{
  CHECK(Schedule{.peak = 1, .steps = 1, .decay = Decay::cosine}.at(0) == Approx(1));
  CHECK(Schedule{.peak = 1, .warmup = 10, .steps = 5, .decay = Decay::cosine}.at(4) == Approx(5.0 / 11));
}

TEST_CASE("clip_factor: 1 up to the limit, then limit over norm")
{
  CHECK(clip_factor(0.5, 1) == 1);
  CHECK(clip_factor(4, 1) == Approx(0.25).epsilon(1e-5));
  CHECK(clip_factor(100, 0) == 1);
}
