// What a run asks of the checkpoints that its options name.

#include <algorithm>
#include <array>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "gpt2/files/checkpoint.hpp"
#include "gpt2/files/published_names.hpp"
#include "gpt2/files/weights.hpp"

namespace rankwise {

std::vector<RunOption> run_options(const TrainingOptions& o, const Tokens& tokens)
{
  const LearningRateSchedule& s = o.schedule;
  const bool cosine = s.decay == Decay::cosine;
  std::vector<RunOption> options{{"data-sha256", tokens.sha256},
                                 {"data-tokenizer", tokens.tokenizer->name()},
                                 {"seed", fmt::to_string(o.seed)},
                                 {"global-batch", fmt::to_string(o.global_batch)},
                                 {"sequence", fmt::to_string(o.batch(o.global_batch).sequence)},
                                 {"mask", o.config().mask.text()},
                                 {"dropout", fmt::to_string(o.dropout)},
                                 {"learning-rate-schedule", cosine ? "cosine" : "constant"},
                                 {"learning-rate", fmt::to_string(s.peak)},
                                 {"warmup", fmt::to_string(s.warmup)},
                                 {"beta1", fmt::to_string(o.adamw.beta1)},
                                 {"beta2", fmt::to_string(o.adamw.beta2)},
                                 {"epsilon", fmt::to_string(o.adamw.epsilon)},
                                 {"weight-decay", fmt::to_string(o.adamw.weight_decay)},
                                 {"clip", fmt::to_string(o.clip)},
                                 {"freeze", o.freeze}};
  if (o.experts.count > 1) {
    options.push_back({"experts-per-token", fmt::to_string(o.experts.per_token)});
    options.push_back({"capacity-factor", fmt::to_string(o.experts.capacity_factor)});
    options.push_back({"auxiliary-loss", fmt::to_string(o.experts.auxiliary_loss)});
  }
  if (cosine) {
    const std::int64_t steps = o.schedule_over(o.sequences_of_epoch(tokens)).steps;
    options.push_back({"min-learning-rate", fmt::to_string(s.least)});
    options.push_back({"steps", fmt::to_string(steps)});
  }
  return options;
}

bool checkpoint_is_due(const TrainingOptions& options, std::int64_t made, std::int64_t last)
{
  if (options.checkpoint.empty()) return false;
  return made == last || (options.checkpoint_every > 0 && made % options.checkpoint_every == 0);
}

void take_initial_sizes(TrainingOptions& options, const OptionTable& table)
{
  if (options.initial.empty() || options.resume || table.given("model")) return;
  ModelConfig sizes;
  try {
    sizes = checkpoint_sizes(options.initial);
  } catch (const Error&) {
    return;  // the checks of the run say what is wrong with this file
  }
  if (sizes.architecture != options.architecture) return;
  options.sizes_from = options.initial;
  const std::array<std::int64_t*, model_sizes.size()> asked{&options.layers, &options.heads, &options.channels,
                                                            &options.context, &options.vocabulary};
  for (std::size_t i = 0; i < asked.size(); ++i)
    if (*asked[i] == 0) *asked[i] = sizes.*model_sizes[i].second;
}

// ---- Refusals --------------------------------------------------------------------------------------------------

namespace {

/// Refuses the file unless its model has the sizes of @p config.
void check_same_model(const CheckpointInfo& info, const ModelConfig& config, const std::string& asked)
{
  if (info.config.architecture != config.architecture)
    throw UserError(
        fmt::format("{} holds a {}, and this lesson trains a {}.", asked,
                    published_names(info.config.architecture).called, published_names(config.architecture).called),
        "Lesson 12 trains a BERT, all others a GPT-2.");
  std::vector<std::string> there, here;
  for (const auto& [name, size] : model_sizes) {
    if (info.config.*size == config.*size) continue;
    there.push_back(fmt::format("--{}={}", name, info.config.*size));
    here.push_back(fmt::format("--{}={}", name, config.*size));
  }
  for (const auto& [name, size] : expert_sizes) {
    const bool dense = info.config.experts.count == 1 && config.experts.count == 1;
    if (dense || info.config.experts.*size == config.experts.*size) continue;
    there.push_back(fmt::format("--{}={}", name, info.config.experts.*size));
    here.push_back(fmt::format("--{}={}", name, config.experts.*size));
  }
  if (!there.empty())
    throw UserError(
        fmt::format("{} holds another model: {} there, {} here.", asked, fmt::join(there, " "),
                    fmt::join(here, " ")),
        "Use the sizes of the model in the file, or name another file." +
            std::string(info.config.experts.count > 1 ? " Only lessons 15 and 16 train a model with experts."
                                                      : ""));
}

/// Refuses to resume from the file with options that differ from those of its run and change what is computed.
void check_same_run(const CheckpointInfo& info, const std::vector<RunOption>& wanted, const std::string& asked)
{
  std::vector<std::string> there, here;
  for (const RunOption& option : wanted) {
    const auto same_name = [&](const RunOption& o) { return o.name == option.name; };
    const auto found = std::find_if(info.options.begin(), info.options.end(), same_name);
    const bool used = found != info.options.end();
    if (used ? found->value == option.value : option.value.empty()) continue;
    const char* const dashes = option.name.starts_with("data-") ? "" : "--";
    there.push_back(dashes + option.name + (used ? "=" + found->value : " not used"));
    here.push_back(dashes + option.name + "=" + option.value);
  }
  if (!there.empty())
    throw UserError(fmt::format("{} belongs to another run: {} there, {} here.", asked, fmt::join(there, " "),
                                fmt::join(here, " ")),
                    "--resume continues the same run: the same data, seed, batches, learning rates and so on. "
                    "Use its options,\nor begin a new run with its parameters: --initial=FILE.h5.");
}

void check_resumable(const TrainingOptions& options, const Tokens& tokens)
{
  const std::string asked = "--checkpoint=" + options.checkpoint;
  const CheckpointInfo info = check_checkpoint(options.checkpoint, asked);
  if (!info.moments)
    throw UserError(fmt::format("{} holds weights only, so there is no run to resume.", asked),
                    "Begin a run with these weights: --initial=FILE.h5.");
  check_same_model(info, options.config(), asked);
  check_same_run(info, run_options(options, tokens), asked);
  const std::int64_t last = options.last_step(options.sequences_of_epoch(tokens));
  if (info.step >= last)
    throw UserError(
        fmt::format("{} was made after step {}, and this run ends after step {}: nothing is left to do.", asked,
                    info.step, last),
        "--steps counts the steps of the whole run, including those before the checkpoint. Use a larger number.");
}

}  // namespace

void check_checkpoints(const TrainingOptions& options, const Tokens& tokens)
{
  if (options.resume) {
    check_resumable(options, tokens);
  } else if (!options.checkpoint.empty() && std::filesystem::exists(options.checkpoint)) {
    throw UserError(
        fmt::format("--checkpoint={} exists already, and a new run would replace it.", options.checkpoint),
        "Continue from it with --resume, remove it, or give this run's checkpoint another name.");
  }
  if (options.initial.empty()) return;
  const std::string asked = "--initial=" + options.initial;
  check_same_model(check_checkpoint(options.initial, asked), options.config(), asked);
  check_finite_weights(options.initial, options.config(), asked);
}

}  // namespace rankwise
