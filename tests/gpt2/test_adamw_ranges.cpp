// gpt2/adamw.hpp: the optimizer over ranges of the flat vector, the learning rate, clipping.

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "gpt2/adamw.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/testing.hpp"

using namespace rankwise;

namespace {

const ModelConfig tiny{.name = "tiny", .layers = 1, .heads = 2, .channels = 8, .context = 4, .vocabulary = 11};

/// Result of three updates.
struct Updated {
  std::vector<float> master;  ///< the weights that are updated
  std::vector<bf16> rounded;  ///< with bf16 the parameters

  friend bool operator==(const Updated& a, const Updated& b)
  {
    const auto same_bits = [](bf16 x, bf16 y) { return x.bits == y.bits; };
    return a.master == b.master && std::ranges::equal(a.rounded, b.rounded, same_bits);
  }
};

/// Three updates when the flat vector is cut into @p N shards with an optimizer each. The gradients are bf16 numbers.
Updated updated(std::int64_t N, DType precision = DType::f32, DType gradient_type = DType::f32)
{
  const ParameterTable table(tiny);
  const auto device = make_cpu_device();
  const auto stream = device->make_stream();
  const auto kernels = make_reference_kernels();
  MemoryLedger ledger;
  const DeviceMemory memory{device.get(), &ledger};
  const auto n = static_cast<std::size_t>(table.elements());
  Updated all{std::vector<float>(n), std::vector<bf16>(precision == DType::bf16 ? n : 0)};
  std::vector<float> initial(n), wide(n);
  std::vector<bf16> narrow(n);
  for (std::size_t i = 0; i < n; ++i) initial[i] = all.master[i] = std::sin(0.7f * static_cast<float>(i));
  const Shape shape{table.elements()};
  const bool own_master = precision == DType::bf16;
  const Tensor p = own_master ? Tensor(std::span(all.rounded), shape) : Tensor(std::span(all.master), shape);
  const Tensor g = gradient_type == DType::bf16 ? Tensor(std::span(narrow), shape) : Tensor(std::span(wide), shape);
  for (std::int64_t r = 0; r < N; ++r) {
    const Range mine = Partition(table.elements(), N).shard(r);
    AdamW adamw(memory, *stream, table, mine, precision, {});
    CHECK(ledger.current(Tier::device)[Category::optimizer] == adamw_bytes(mine.count, precision));
    const Tensor master = adamw.master(p.slice(mine));
    stream->copy(master, Tensor(std::span(initial), shape).slice(mine));
    adamw.round(kernels, p.slice(mine));
    for (int step = 0; step < 3; ++step) {
      for (std::size_t i = 0; i < n; ++i) {
        narrow[i] = bf16(std::cos(0.3f * static_cast<float>(i) + static_cast<float>(step)));
        wide[i] = static_cast<float>(narrow[i]);
      }
      adamw.step(kernels, p.slice(mine), g.slice(mine), 1e-2, 0.5);
    }
    CHECK(adamw.updates() == 3);
    stream->copy(Tensor(std::span(all.master), shape).slice(mine), master);
    stream->synchronise();
  }
  return all;
}

}  // namespace

TEST_CASE("AdamW: shards that cut through tensors update like the whole")
{
  for (const DType precision : {DType::f32, DType::bf16}) {
    const Updated whole = updated(1, precision);
    for (const std::int64_t N : {2, 3, 4, 7}) CHECK(updated(N, precision) == whole);
  }
}

TEST_CASE("AdamW: with bf16 parameters the master weights are those of f32, and the parameters their rounding")
{
  const Updated wide = updated(1), narrow = updated(1, DType::bf16);
  CHECK(narrow.master == wide.master);
  CHECK(updated(3, DType::bf16, DType::bf16) == narrow);
  for (std::size_t i = 0; i < narrow.master.size(); ++i)
    if (narrow.rounded[i].bits != bf16(narrow.master[i]).bits)
      FAIL("element " << i << " is not the rounded weight");
}

TEST_CASE("AdamW: updates too small for bf16 add up in the master weights")
{
  const ParameterTable table(tiny);
  const auto device = make_cpu_device();
  const auto stream = device->make_stream();
  const auto kernels = make_reference_kernels();
  MemoryLedger ledger;
  const Range all{0, table.elements()};
  AdamW adamw({device.get(), &ledger}, *stream, table, all, DType::bf16, {.weight_decay = 0});
  std::vector<bf16> parameters(static_cast<std::size_t>(all.count)), gradients(parameters.size(), bf16(1.0F));
  const Tensor p(parameters.data(), DType::bf16, {all.count}), g(gradients.data(), DType::bf16, {all.count});
  std::ranges::fill(adamw.master(p).span<float>(), 1.0F);
  adamw.round(kernels, p);
  for (int step = 0; step < 10; ++step)
    adamw.step(kernels, p, g, 1e-3, 1);  // each less than 1/512, bf16's half unit
  CHECK(adamw.master(p).span<float>()[5] == Approx(0.99).epsilon(1e-4));
  CHECK(static_cast<float>(parameters[5]) == Approx(0.99).epsilon(1.0 / 512));
  CHECK(static_cast<float>(parameters[5]) < 1);
}

TEST_CASE("AdamW: parameters of another precision than it was made for are refused")
{
  const ParameterTable table(tiny);
  const auto device = make_cpu_device();
  const auto stream = device->make_stream();
  MemoryLedger ledger;
  AdamW adamw({device.get(), &ledger}, *stream, table, {0, 8}, DType::bf16, {});
  std::vector<float> values(8);
  const Tensor wide(values.data(), DType::f32, {8});
  CHECK_THROWS_WITH(adamw.step(make_reference_kernels(), wide, wide, 1e-3, 1), Contains("another precision"));
}

TEST_CASE("AdamW: without a gradient matrices shrink and vectors stay, also where shards cut through them")
{
  const ParameterTable table(tiny);
  const auto device = make_cpu_device();
  const auto stream = device->make_stream();
  MemoryLedger ledger;
  std::vector<float> weights(static_cast<std::size_t>(table.elements()), 1.0F), none(weights.size());
  const Tensor p(weights.data(), DType::f32, {table.elements()}), g(none.data(), DType::f32, p.shape());
  for (std::int64_t r = 0; r < 3; ++r) {
    const Range mine = Partition(table.elements(), 3).shard(r);
    AdamW adamw({device.get(), &ledger}, *stream, table, mine, DType::f32, {.weight_decay = 0.5});
    adamw.step(make_reference_kernels(), p.slice(mine), g.slice(mine), 0.1, 1);
  }
  for (const Parameter& parameter : table.entries())
    for (std::int64_t i = parameter.elements.first; i < parameter.elements.end(); ++i)
      if (weights[static_cast<std::size_t>(i)] != Approx(parameter.decays ? 0.95 : 1.0))
        FAIL("element " << i << ", of " << parameter.name << ", became " << weights[static_cast<std::size_t>(i)]);
}

TEST_CASE("AdamW: matrices decay, vectors do not")
{
  const ParameterTable table(tiny);
  for (const Parameter& p : table.entries()) {
    const bool vector = p.name.ends_with(".bias") || p.name.find("ln_") != std::string::npos;
    CHECK(p.decays == !vector);
  }
}

TEST_CASE("LearningRateSchedule: grows over warm-up, then stays or falls along a cosine to its least value")
{
  const LearningRateSchedule constant{.peak = 1, .warmup = 4, .steps = 20};
  CHECK(constant.at(0) == Approx(0.2));
  CHECK(constant.at(3) == Approx(0.8));
  CHECK(constant.at(4) == 1);
  CHECK(constant.at(19) == 1);

  const LearningRateSchedule cosine{.peak = 1, .least = 0.1, .warmup = 4, .steps = 25, .decay = Decay::cosine};
  CHECK(cosine.at(4) == Approx(1));
  CHECK(cosine.at(14) == Approx(0.55));
  CHECK(cosine.at(24) == Approx(0.1));
  for (std::int64_t step = 5; step < 25; ++step) CHECK(cosine.at(step) < cosine.at(step - 1));
}

TEST_CASE("LearningRateSchedule: a run of one step, and one that is all warm-up, have a learning rate")
{
  CHECK(LearningRateSchedule{.peak = 1, .steps = 1, .decay = Decay::cosine}.at(0) == Approx(1));
  CHECK(LearningRateSchedule{.peak = 1, .warmup = 10, .steps = 5, .decay = Decay::cosine}.at(4) ==
        Approx(5.0 / 11));
}

TEST_CASE("clip_factor: 1 up to the limit, then limit over norm")
{
  CHECK(clip_factor(0.5, 1) == 1);
  CHECK(clip_factor(4, 1) == Approx(0.25).epsilon(1e-5));
  CHECK(clip_factor(100, 0) == 1);
}
