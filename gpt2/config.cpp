#include "gpt2/config.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "common/base/text.hpp"

namespace rankwise {

namespace {

/// The presets of one architecture.
const std::vector<ModelConfig>& presets(Architecture architecture)
{
  static const std::vector<ModelConfig> gpt2{{"nano", 4, 4, 64, 64, 256},
                                             {"mini", 6, 6, 384, 256, 256},
                                             {"gpt2", 12, 12, 768, 1024, 50257},
                                             {"gpt2-medium", 24, 16, 1024, 1024, 50257},
                                             {"gpt2-large", 36, 20, 1280, 1024, 50257},
                                             {"gpt2-xl", 48, 25, 1600, 1024, 50257}};
  static const std::vector<ModelConfig> bert{{"nano", 4, 4, 64, 64, 260},
                                             {"mini", 6, 6, 384, 256, 260},
                                             {"bert-base", 12, 12, 768, 512, 30522},
                                             {"bert-large", 24, 16, 1024, 512, 30522}};
  return architecture == Architecture::bert ? bert : gpt2;
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

std::int64_t ExpertConfig::capacity(std::int64_t T) const
{
  if (capacity_factor == 0) return T;
  const double share = static_cast<double>(per_token * T) / static_cast<double>(count);
  return std::min(T, static_cast<std::int64_t>(std::ceil(capacity_factor * share)));
}

std::int64_t ModelConfig::parameters() const
{
  const std::int64_t C = channels;
  const std::int64_t both = vocabulary * C + context * C + layers * (12 * C * C + 13 * C) +
                            expert_blocks() * ((experts.count - 1) * expert_parameters() + C * experts.count);
  if (architecture == Architecture::gpt2) return both + 2 * C;
  return both + 4 * C + (2 * C * C + 6 * C + vocabulary + 2);
}

ModelConfig preset(const std::string& name, Architecture architecture)
{
  const std::vector<ModelConfig>& all = presets(architecture);
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& c) { return c.name == name; });
  if (found == all.end())
    throw UserError(fmt::format("--model={} is not a model.", name),
                    fmt::format("Use {}.", one_of(preset_names(architecture))));
  ModelConfig config = *found;
  config.architecture = architecture;
  return config;
}

std::vector<std::string> preset_names(Architecture architecture)
{
  std::vector<std::string> names;
  for (const ModelConfig& config : presets(architecture)) names.push_back(config.name);
  return names;
}

namespace {

void check_experts(const ModelConfig& config)
{
  constexpr std::int64_t most_experts = 512;  // whose loads one message adds up
  const ExpertConfig& e = config.experts;
  if (e.count < 1 || e.count > most_experts)
    throw UserError(fmt::format("--experts={} is out of range.", e.count),
                    fmt::format("Use 1 for a dense model, or up to {} experts.", most_experts));
  if (e.per_token < 1 || e.per_token > e.count)
    throw UserError(fmt::format("--experts-per-token={} is not possible with --experts={}.", e.per_token, e.count),
                    fmt::format("A token goes to different experts. Use 1 to {}.", e.count));
  if (e.count > 1 && (e.every < 1 || e.every > config.layers))
    throw UserError(fmt::format("--expert-every={} is not possible with {} blocks.", e.every, config.layers),
                    fmt::format("The last of every n blocks has experts: use n from 1 to {}.", config.layers));
  if (!(e.capacity_factor >= 0) || !(e.auxiliary_loss >= 0) || std::isinf(e.capacity_factor + e.auxiliary_loss))
    throw UserError(fmt::format("--capacity-factor={} --auxiliary-loss={}: neither may be negative or infinite.",
                                e.capacity_factor, e.auxiliary_loss),
                    "Use 0 for no bound on the load of an expert, and for no auxiliary loss.");
}

}  // namespace

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
  check_experts(config);
}

double step_flops(const ModelConfig& config, std::int64_t tokens, std::int64_t T, bool recompute)
{
  if (config.architecture == Architecture::bert) {
    double flops = 0;
    for (std::int64_t unit = 0; unit < unit_count(config); ++unit)
      flops += (recompute && unit < unit_count(config) - 1 ? 4 : 3) * unit_flops(config, unit, tokens, T);
    return flops;
  }
  const auto N = static_cast<double>(config.active_parameters() - config.context * config.channels);
  const auto attention = static_cast<double>(config.layers * config.channels * T);
  const double per_token = recompute ? 8 * N + 16 * attention : 6 * N + 12 * attention;
  return per_token * static_cast<double>(tokens);
}

double recomputed_flops(const ModelConfig& config, std::int64_t tokens)
{
  return 8 * static_cast<double>(config.active_parameters() - config.context * config.channels) *
         static_cast<double>(tokens);
}

double unit_flops(const ModelConfig& config, std::int64_t unit, std::int64_t tokens, std::int64_t T)
{
  const std::int64_t C = config.channels;
  const bool head = unit == 2 * config.layers + 1, attention = !head && unit % 2 == 1;
  if (unit == 0) return 0;
  if (head && config.architecture == Architecture::bert) {
    const std::int64_t a_token = config.vocabulary * (C + 1) + C * C + 3 * C, a_sequence = C * C + 3 * C + 2;
    return 2 * static_cast<double>(tokens) * static_cast<double>(a_token) +
           2 * static_cast<double>(tokens / T) * static_cast<double>(a_sequence);
  }
  const bool experts = !head && !attention && config.has_experts((unit - 1) / 2);
  const std::int64_t parameters =
      head        ? config.vocabulary * C + 2 * C
      : attention ? 4 * C * C + 6 * C
      : experts   ? config.experts.per_token * config.expert_parameters() + C * config.experts.count + 2 * C
                  : 8 * C * C + 7 * C;
  return static_cast<double>(tokens) * static_cast<double>(2 * parameters + (attention ? 4 * C * T : 0));
}

}  // namespace rankwise
