#include "gpt2/config.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

#include "common/base/text.hpp"

namespace rankwise {

namespace {

const std::array<ModelConfig, 6>& presets()
{
  static const std::array<ModelConfig, 6> all{{{"nano", 4, 4, 64, 64, 256},
                                               {"mini", 6, 6, 384, 256, 256},
                                               {"gpt2", 12, 12, 768, 1024, 50257},
                                               {"gpt2-medium", 24, 16, 1024, 1024, 50257},
                                               {"gpt2-large", 36, 20, 1280, 1024, 50257},
                                               {"gpt2-xl", 48, 25, 1600, 1024, 50257}}};
  return all;
}

}  // namespace

std::string Mask::text() const
{
  switch (kind) {
    case Kind::causal:
      return "causal";
    case Kind::prefix:
      return fmt::format("prefix:{}", prefix);
    case Kind::full:
      return "full";
  }
  return "";
}

Mask Mask::parse(const std::string& text)
{
  constexpr std::string_view prefix_word = "prefix:";
  if (text == "causal") return {};
  if (text == "full") return {Kind::full, 0};
  if (text.starts_with(prefix_word)) {
    Mask mask{Kind::prefix, 0};
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + prefix_word.size(), end, mask.prefix);
    if (error == std::errc{} && rest == end && mask.prefix >= 0) return mask;
  }
  throw UserError(fmt::format("--mask={} is not a mask.", text),
                  "Use --mask=causal, --mask=full, or --mask=prefix:K with K >= 0 tokens that every query sees.");
}

std::int64_t ModelConfig::parameters() const
{
  const std::int64_t C = channels;
  return vocabulary * C + context * C + layers * (12 * C * C + 13 * C) + 2 * C;
}

ModelConfig preset(const std::string& name)
{
  const auto found =
      std::find_if(presets().begin(), presets().end(), [&](const auto& c) { return c.name == name; });
  if (found == presets().end())
    throw UserError(fmt::format("--model={} is not a model.", name),
                    fmt::format("Use {}.", one_of(preset_names())));
  return *found;
}

std::vector<std::string> preset_names()
{
  std::vector<std::string> names;
  for (const ModelConfig& config : presets()) names.push_back(config.name);
  return names;
}

void check_config(const ModelConfig& config)
{
  constexpr std::int64_t most_layers = 8190, most_heads = 32767;  // limits of the random numbers' keys
  const std::array<std::pair<const char*, std::int64_t>, 5> sizes{{{"layers", config.layers},
                                                                   {"heads", config.heads},
                                                                   {"channels", config.channels},
                                                                   {"context", config.context},
                                                                   {"vocabulary", config.vocabulary}}};
  for (const auto& [option, value] : sizes) {
    if (value < 1 || value > (std::int64_t{1} << 31))
      throw UserError(fmt::format("--{}={} is out of range.", option, value),
                      fmt::format("Choose --{} between 1 and 2^31.", option));
  }
  if (config.layers > most_layers || config.heads > most_heads)
    throw UserError(fmt::format("a model of {} layers and {} heads is too large.", config.layers, config.heads),
                    fmt::format("Use at most {} layers and {} heads.", most_layers, most_heads));
  if (config.channels % config.heads != 0)
    throw UserError(
        fmt::format("--heads={} does not divide the {} channels of model {}.", config.heads, config.channels,
                    config.name),
        "Every head has C / H channels, a whole number. Choose --heads that divides --channels, or the reverse.");
}

double step_flops(const ModelConfig& config, std::int64_t tokens, std::int64_t T, bool recompute)
{
  const auto N = static_cast<double>(config.parameters() - config.context * config.channels);
  const auto attention = static_cast<double>(config.layers * config.channels * T);
  const double per_token = recompute ? 8 * N + 16 * attention : 6 * N + 12 * attention;
  return per_token * static_cast<double>(tokens);
}

double recomputed_flops(const ModelConfig& config, std::int64_t tokens)
{
  return 8 * static_cast<double>(config.parameters() - config.context * config.channels) *
         static_cast<double>(tokens);
}

double unit_flops(const ModelConfig& config, std::int64_t unit, std::int64_t tokens, std::int64_t T)
{
  const std::int64_t C = config.channels;
  const bool head = unit == 2 * config.layers + 1, attention = !head && unit % 2 == 1;
  if (unit == 0) return 0;
  const std::int64_t parameters = head        ? config.vocabulary * C + 2 * C
                                  : attention ? 4 * C * C + 6 * C
                                              : 8 * C * C + 7 * C;
  return static_cast<double>(tokens) * static_cast<double>(2 * parameters + (attention ? 4 * C * T : 0));
}

}  // namespace rankwise
