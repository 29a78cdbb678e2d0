#include <string>

#include "common/base/error.hpp"
#include "gpt2/config.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

/// The message of check_config().
std::string refusal_of(const ModelConfig& config)
{
  try {
    check_config(config);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

/// The same for nano with one number changed.
std::string refusal(std::int64_t ModelConfig::*size, std::int64_t value)
{
  ModelConfig config = preset("nano");
  config.*size = value;
  return refusal_of(config);
}

}  // namespace

TEST_CASE("preset: has the published sizes and numbers of parameters")
{
  const auto row = [](const std::string& name) {
    const ModelConfig c = preset(name);
    return std::vector<std::int64_t>{c.layers, c.heads, c.channels, c.context, c.vocabulary, c.parameters()};
  };
  using Row = std::vector<std::int64_t>;
  CHECK(row("nano") == Row{4, 4, 64, 64, 256, 220'544});
  CHECK(row("mini") == Row{6, 6, 384, 256, 256, 10'844'160});
  CHECK(row("gpt2") == Row{12, 12, 768, 1024, 50257, 124'439'808});
  CHECK(row("gpt2-medium") == Row{24, 16, 1024, 1024, 50257, 354'823'168});
  CHECK(row("gpt2-large") == Row{36, 20, 1280, 1024, 50257, 774'030'080});
  CHECK(row("gpt2-xl") == Row{48, 25, 1600, 1024, 50257, 1'557'611'200});
  for (const std::string& name : preset_names()) {
    CHECK(preset(name).name == name);
    CHECK(preset(name).mask.kind == Mask::Kind::causal);
    CHECK_NOTHROW(check_config(preset(name)));
  }
  CHECK(preset_names().size() == 6);
  CHECK_THROWS_AS(preset("gpt3"), UserError);
  CHECK_THROWS_WITH(preset("gpt3"), Contains("--model=gpt3") && Contains("nano") && Contains("gpt2-xl"));
}

TEST_CASE("padded_vocabulary: is the next multiple of 8")
{
  ModelConfig config = preset("gpt2");
  CHECK(config.padded_vocabulary() == 50264);
  for (const auto& [V, padded] : {std::pair{1, 8}, {8, 8}, {9, 16}, {256, 256}}) {
    config.vocabulary = V;
    CHECK(config.padded_vocabulary() == padded);
  }
  CHECK(preset("nano").head_channels() == 16);
}

TEST_CASE("visible_keys: every query sees a first run of keys")
{
  constexpr std::int64_t T = 5;
  const auto seen = [](const Mask& mask) {
    std::vector<std::int64_t> keys;
    for (std::int64_t q = 0; q < T; ++q) keys.push_back(mask.visible_keys(q, T));
    return keys;
  };
  using Keys = std::vector<std::int64_t>;
  CHECK(seen(Mask::parse("causal")) == Keys{1, 2, 3, 4, 5});
  CHECK(seen(Mask::parse("full")) == Keys{5, 5, 5, 5, 5});
  CHECK(seen(Mask::parse("prefix:0")) == Keys{1, 2, 3, 4, 5});
  CHECK(seen(Mask::parse("prefix:1")) == Keys{1, 2, 3, 4, 5});
  CHECK(seen(Mask::parse("prefix:3")) == Keys{3, 3, 3, 4, 5});
  CHECK(seen(Mask::parse("prefix:5")) == Keys{5, 5, 5, 5, 5});
  CHECK(seen(Mask::parse("prefix:9")) == Keys{5, 5, 5, 5, 5});  // never more than there are
}

TEST_CASE("Mask::parse: is the reverse of text() and refuses anything else")
{
  for (const std::string text : {"causal", "full", "prefix:0", "prefix:17"})
    CHECK(Mask::parse(text).text() == text);
  for (const std::string text : {"", "Causal", "prefix", "prefix:", "prefix:-1", "prefix:3x", "prefix: 3", "full:2",
                                 "prefix:99999999999999999999"}) {
    INFO(text);
    CHECK_THROWS_AS(Mask::parse(text), UserError);
    CHECK_THROWS_WITH(Mask::parse(text), Contains("--mask=" + text) && Contains("prefix:K"));
  }
}

TEST_CASE("check_config: refuses sizes that no model has, and names them")
{
  CHECK_THAT(refusal(&ModelConfig::heads, 3), Contains("--heads=3") && Contains("64 channels"));
  CHECK_THAT(refusal(&ModelConfig::channels, 66), Contains("--heads=4") && Contains("66 channels"));
  CHECK_THAT(refusal(&ModelConfig::layers, 0), Contains("--layers=0"));
  CHECK_THAT(refusal(&ModelConfig::heads, 0), Contains("--heads=0"));
  CHECK_THAT(refusal(&ModelConfig::channels, -64), Contains("--channels=-64"));
  CHECK_THAT(refusal(&ModelConfig::context, 0), Contains("--context=0"));
  CHECK_THAT(refusal(&ModelConfig::vocabulary, std::int64_t{1} << 40), Contains("--vocabulary=1099511627776"));
  CHECK_THAT(refusal(&ModelConfig::layers, 8191), Contains("8191 layers"));
  CHECK(refusal(&ModelConfig::layers, 8190).empty());
  CHECK(refusal(&ModelConfig::heads, 1).empty());
  CHECK(refusal(&ModelConfig::heads, 64).empty());
}

TEST_CASE(
    "check_config, check_step: sizes whose products cannot be counted are refused with the largest that are "
    "possible")
{
  CHECK_THAT(refusal(&ModelConfig::channels, 1 << 30),
             Contains("5.534e+19 parameters") && Contains("--channels=4564348"));
  CHECK(refusal(&ModelConfig::channels, 4564348).empty());
  CHECK_THAT(refusal(&ModelConfig::channels, 4564352), Contains("--channels=4564348 or --vocabulary"));
  ModelConfig config = preset("gpt2-xl");
  for (std::int64_t ModelConfig::*size :
       {&ModelConfig::channels, &ModelConfig::context, &ModelConfig::vocabulary}) {
    ModelConfig large = config;
    large.*size = std::int64_t{1} << 31;
    large.heads = 1;
    const std::string message = refusal_of(large);
    if (message.empty()) {
      CHECK(large.parameters() > 0);
      continue;
    }
    large.*size = std::stoll(message.substr(message.rfind('=') + 1));
    CHECK_NOTHROW(check_config(large));
    ++(large.*size);
    CHECK_THROWS_AS(check_config(large), UserError);
  }
  config.experts.count = 512;
  config.channels = 400'000;
  CHECK_THAT(refusal_of(config), Contains("parameters, too many"));

  config = preset("gpt2-xl");
  CHECK_NOTHROW(check_step(config, 640'640, 1024));
  CHECK_THROWS_WITH(check_step(config, 640'641, 1024), Contains("--global-batch=640640 or less"));
  CHECK(step_flops(config, 640'640 * 1024, 1024, true) < 9.2e18);
  config.context = std::int64_t{1} << 31;
  CHECK_THROWS_WITH(check_step(config, 1, config.context), Contains("shorter sequences"));
  CHECK(ExpertConfig{.count = 8, .capacity_factor = 1e300}.capacity(64) == 64);
}

TEST_CASE("unit_flops: forward and backward passes of all units are a step")
{
  for (const char* name : {"nano", "gpt2-large"}) {
    const ModelConfig config = preset(name);
    double sum = 0;
    for (std::int64_t unit = 0; unit < 2 * config.layers + 2; ++unit) sum += 3 * unit_flops(config, unit, 192, 64);
    CHECK(sum == Approx(step_flops(config, 192, 64, false)).epsilon(1e-12));
  }
  // nano's attention: 2 (4 C^2 + 6 C) + 4 C T a token
  CHECK(unit_flops(preset("nano"), 1, 1, 64) == 2 * (4 * 4096 + 6 * 64) + 4 * 64 * 64);
}

TEST_CASE("step_flops: is 6 P + 12 L C T a token, 8 P + 16 L C T with recomputation")
{
  // nano: N = 220,544 - 64 x 64 positions = 216,448, and L C T = 4 x 64 x 64 = 16,384
  const ModelConfig nano = preset("nano");
  CHECK(step_flops(nano, 1, 64, false) == 1'495'296);
  CHECK(step_flops(nano, 1, 64, true) == 1'993'728);
  CHECK(step_flops(nano, 16 * 64, 64, false) == 1'531'183'104);
  CHECK(step_flops(nano, 1, 32, false) == 1'396'992);  // half the keys
  // every matrix of gpt2, multiplied three times (forward, dx, dw), and the 4 T C of attention a layer:
  const double matrices = 12 * (3 + 1 + 4 + 4) * 768.0 * 768 + 50257 * 768.0, attention = 12 * 4 * 1024.0 * 768;
  // the rest is biases and norms, which 6 P counts like matrices: 0.1 % of all
  CHECK(step_flops(preset("gpt2"), 1, 1024, false) == Approx(3 * (2 * matrices + attention)).epsilon(2e-3));
}

TEST_CASE("recomputed_flops: is 8 P a token, without attention's own products")
{
  const ModelConfig nano = preset("nano");
  CHECK(recomputed_flops(nano, 1) == 8 * 216'448);
  CHECK(recomputed_flops(nano, 16 * 64) == 8 * 216'448 * 1024.0);
  CHECK(step_flops(nano, 1, 64, true) - recomputed_flops(nano, 1) == 16 * 16'384);
  // GPT-3: 96 L C^2 a token, and the vocabulary, biases and norms on top
  const ModelConfig large{"gpt3", 96, 96, 12288, 2048, 51200, {}};
  CHECK(recomputed_flops(large, 1) == Approx(96.0 * 96 * 12288 * 12288).epsilon(5e-3));
}
