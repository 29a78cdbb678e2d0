#include "gpt2/config.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

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
  return static_cast<std::int64_t>(std::min(static_cast<double>(T), std::ceil(capacity_factor * share)));
}

namespace {

/// P of any sizes, also of too many parameters; exact up to 2^53.
double count_parameters(const ModelConfig& config)
{
  const auto C = static_cast<double>(config.channels), V = static_cast<double>(config.vocabulary);
  const auto L = static_cast<double>(config.layers), E = static_cast<double>(config.experts.count);
  const double experts = static_cast<double>(config.expert_blocks()) * ((E - 1) * (8 * C * C + 5 * C) + C * E);
  const double both = (V + static_cast<double>(config.context)) * C + L * (12 * C * C + 13 * C) + experts;
  return both + (config.architecture == Architecture::gpt2 ? 2 * C : 2 * C * C + 10 * C + V + 2);
}

}  // namespace

std::int64_t ModelConfig::parameters() const
{
  return static_cast<std::int64_t>(count_parameters(*this));
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

/// The largest value of one size with which a model has at most @p most parameters; 0: none.
std::int64_t largest_possible(ModelConfig config, std::int64_t ModelConfig::*size, double most)
{
  std::int64_t possible = 0, too_large = config.*size;
  while (too_large - possible > 1) {
    config.*size = std::midpoint(possible, too_large);
    (count_parameters(config) <= most ? possible : too_large) = config.*size;
  }
  return size == &ModelConfig::channels ? possible - possible % config.heads : possible;
}

/// Refuses more parameters than the bytes and operations of a step could be counted with.
void check_parameters(const ModelConfig& config)
{
  constexpr double most = 1e15;
  if (count_parameters(config) <= most) return;
  std::vector<std::string> smaller;
  for (const auto& [option, size] : model_sizes)
    if (const std::int64_t possible = largest_possible(config, size, most); possible > 0)
      smaller.push_back(fmt::format("--{}={}", option, possible));
  throw UserError(
      fmt::format("the model {} with L={} C={} V={} and context {} has {:.4g} parameters, too many.", config.name,
                  config.layers, config.channels, config.vocabulary, config.context, count_parameters(config)),
      fmt::format("The most are {:.0e}. With the other sizes as they are, use at most {}.", most,
                  smaller.empty() ? "smaller ones of several" : one_of(smaller)));
}

}  // namespace

void check_config(const ModelConfig& config)
{
  constexpr std::int64_t most_layers = 8190, most_heads = 32767;  // limits of the random numbers' keys
  for (const auto& [option, size] : model_sizes)
    if (config.*size < 1 || config.*size > (std::int64_t{1} << 31))
      throw UserError(fmt::format("--{}={} is out of range.", option, config.*size),
                      fmt::format("Choose --{} between 1 and 2^31.", option));
  if (config.layers > most_layers || config.heads > most_heads)
    throw UserError(fmt::format("a model of {} layers and {} heads is too large.", config.layers, config.heads),
                    fmt::format("Use at most {} layers and {} heads.", most_layers, most_heads));
  if (config.channels % config.heads != 0)
    throw UserError(
        fmt::format("--heads={} does not divide the {} channels of model {}.", config.heads, config.channels,
                    config.name),
        "Every head has C / H channels, a whole number. Choose --heads that divides --channels, or the reverse.");
  check_experts(config);
  check_parameters(config);
}

void check_step(const ModelConfig& config, std::int64_t sequences, std::int64_t T)
{
  // Bytes that are kept or sent in a step are fewer than its operations, if a sequence counts as 64 tokens at least.
  constexpr double most = 9e18;
  const auto tokens = static_cast<double>(std::max<std::int64_t>(T, 64));
  const double attention = static_cast<double>(config.layers) * static_cast<double>(config.channels) * tokens;
  const double flops = tokens * (8 * count_parameters(config) + 16 * attention);
  if (flops * static_cast<double>(sequences) <= most) return;
  throw UserError(
      fmt::format("a step of --global-batch={} with sequences of {} tokens has {:.4g} operations, too many.",
                  sequences, T, flops * static_cast<double>(sequences)),
      fmt::format("The most are {:.0e}. Use {}.", most,
                  flops > most ? "a smaller model, or shorter sequences"
                               : fmt::format("--global-batch={:.0f} or less", std::floor(most / flops))));
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
