#include "common/base/error.hpp"
#include "gpt2/utilisation.hpp"
#include "tests/catch.hpp"

namespace rankwise {
namespace {

/// The count with this name.
double count(const std::vector<FlopCount>& counts, const std::string& name)
{
  for (const FlopCount& one : counts)
    if (one.name == name) return one.flops;
  throw Error("no count " + name);
}

TEST_CASE("flop_counts: by hand for nano, one token of a sequence of 64")
{
  // P without positions 216,448, L C T = 16,384; 12 C^2 + 13 C = 49,984 parameters a block, 256 x 64 in the head
  const std::vector<FlopCount> counts = flop_counts(preset("nano"), 1, 64, true);
  CHECK(count(counts, "MFU") == 6 * 216'448 + 12 * 16'384);
  CHECK(count(counts, "MFU, visible") == Approx(6 * 216'448 + 12 * 4 * 64 * 32.5));  // (T + 1) / 2 keys
  CHECK(count(counts, "MFU, Korthikanti") == Approx(6 * 4 * 12 * 4096 + 12 * 16'384 + 6 * 16'384));
  CHECK(count(counts, "HFU") - count(counts, "MFU") == 4 * (2 * 49'984 + 4 * 64 * 64));
  CHECK(count(counts, "HFU, Megatron-LM") == Approx(8 * 4 * 12 * 4096 + 16 * 16'384 + 6 * 16'384));
}

TEST_CASE("flop_counts: without recomputation the hardware does what the model needs")
{
  const std::vector<FlopCount> counts = flop_counts(preset("gpt2"), 1024, 1024, false);
  CHECK(count(counts, "HFU") == count(counts, "MFU"));
  CHECK(counts.size() == 4);
}

TEST_CASE("flop_counts: Megatron-LM's count for GPT-3 is a step with recomputation, to a percent")
{
  const ModelConfig gpt3{"gpt3", 96, 96, 12288, 2048, 51200, {}};
  const double tokens = 1536.0 * 2048;
  const double megatron = count(flop_counts(gpt3, 1536 * 2048, 2048, true), "HFU, Megatron-LM");
  CHECK(megatron ==
        Approx(96 * tokens * 96 * 12288.0 * 12288 * (1 + 2048 / (6 * 12288.0) + 51200 / (16 * 96 * 12288.0))));
  CHECK(count(flop_counts(gpt3, 1536 * 2048, 2048, true), "HFU") == Approx(megatron).epsilon(1e-2));
}

TEST_CASE("flop_counts: keys that a mask leaves")
{
  ModelConfig config = preset("nano");
  const auto attention = [&](const char* mask) {
    config.mask = Mask::parse(mask);
    return count(flop_counts(config, 1, 64, false), "MFU, visible") - 6 * 216'448;
  };
  CHECK(attention("full") == Approx(12 * 16'384));
  CHECK(attention("causal") == Approx(12 * 4 * 64 * (65 * 32 / 64.0)));
  // the first 16 queries see 16 keys: 16 x 15 / 2 = 120 more than with a causal mask
  CHECK(attention("prefix:16") == Approx(12 * 4 * 64 * ((65 * 32 + 120) / 64.0)));
  CHECK(attention("prefix:64") == Approx(attention("full")));
}

}  // namespace
}  // namespace rankwise
