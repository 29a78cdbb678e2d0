#include "gpt2/training_options.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <fnmatch.h>
#include <limits>

#include <fmt/format.h>

#include "common/base/text.hpp"
#include "data/corpus.hpp"
#include "data/dialogues.hpp"
#include "data/token_file.hpp"
#include "gpt2/parameter_table.hpp"
#include "gpt2/prompt.hpp"

namespace rankwise {

ModelConfig TrainingOptions::config() const
{
  ModelConfig config = preset(model, architecture);
  const std::array<std::int64_t, model_sizes.size()> asked{layers, heads, channels, context, vocabulary};
  for (std::size_t i = 0; i < asked.size(); ++i)
    if (asked[i] != 0) config.*model_sizes[i].second = asked[i];
  config.experts = experts;
  if (!sizes_from.empty()) config.name = sizes_from;
  config.mask = Mask::parse(mask);
  config.frozen = split(freeze, ',');
  check_config(config);
  return config;
}

BatchShape TrainingOptions::batch(std::int64_t share) const
{
  return {.global_batch = global_batch,
          .micro_batch = micro_batch != 0 ? micro_batch : share,
          .sequence = sequence != 0 ? sequence : config().context};
}

BatchShape TrainingOptions::cut_batch(std::int64_t replicas) const
{
  BatchShape shape = batch(global_batch / replicas);
  const bool refused = global_batch < replicas ||
                       (micro_batch != 0 && !std::has_single_bit(static_cast<std::uint64_t>(micro_batch)));
  if (arithmetic != Sums::fast && !refused)
    shape.micro_batch = cut_micro_batch(micro_batch, global_batch, replicas);
  return shape;
}

LoaderOptions TrainingOptions::loader_options() const
{
  // A lesson that reads pairs of lines instead of windows gets windows of one token.
  return {.T = architecture == Architecture::gpt2 ? batch(global_batch).sequence : 1,
          .global_batch = global_batch,
          .seed = seed,
          .uncounted_prefix = std::max<std::int64_t>(config().mask.prefix - 1, 0)};
}

PairLoaderOptions TrainingOptions::pair_options() const
{
  return {.T = batch(global_batch).sequence, .global_batch = global_batch, .seed = seed};
}

Tokens TrainingOptions::open_data() const
{
  if (!data.empty()) return open_token_file(data);
  return architecture == Architecture::bert ? embedded_dialogues() : embedded_corpus();
}

std::int64_t TrainingOptions::sequences_of_epoch(const Tokens& tokens) const
{
  if (architecture == Architecture::bert)
    return PairLoader(tokens.train, *tokens.tokenizer, pair_options()).pairs();
  return Loader(tokens.train, loader_options()).windows();
}

LearningRateSchedule TrainingOptions::schedule_over(std::int64_t epoch) const
{
  constexpr std::int64_t default_steps = 100;
  LearningRateSchedule whole = schedule;
  const std::int64_t in_epochs = (epochs * epoch + global_batch - 1) / global_batch;
  whole.steps = epochs > 0 ? in_epochs : steps > 0 ? steps : default_steps;
  return whole;
}

std::int64_t TrainingOptions::last_step(std::int64_t epoch) const
{
  const std::int64_t all = schedule_over(epoch).steps;
  return stop_after > 0 ? std::min(stop_after, all) : all;
}

ActivationShape TrainingOptions::activation_shape(std::int64_t share, Part part) const
{
  const BatchShape shape = batch(share);
  return {
      .type = precision, .B = shape.micro_batch, .T = shape.sequence, .part = part, .recompute = recompute_blocks};
}

namespace {

constexpr std::int64_t most_steps = (std::int64_t{1} << 32) - 1;  // limit of the random numbers' keys
constexpr std::int64_t most_sequences = 1 << 20, most_epochs = 1'000'000, most_sampled = 1'000'000;

}  // namespace

void check_patterns(const std::string& option, const std::string& asked, const std::vector<std::string>& names)
{
  std::vector<std::string> unused = split(asked, ',');
  std::erase_if(unused, [&](const std::string& pattern) {
    return std::ranges::any_of(
        names, [&](const std::string& name) { return fnmatch(pattern.c_str(), name.c_str(), 0) == 0; });
  });
  if (unused.empty()) return;
  const std::string near = nearest(unused[0], names);
  throw UserError(fmt::format("--{}={} names no tensor of this model with {}.", option, asked, one_of(unused)),
                  (near.empty() ? "" : fmt::format("Did you mean {}? ", near)) +
                      fmt::format("Its tensors are called {}, {} ... {}; * stands for any letters.", names[0],
                                  names[1], names.back()));
}

void check_ranges(const TrainingOptions& o)
{
  const LearningRateSchedule& s = o.schedule;
  const auto require = [](const char* option, const auto& value, bool holds, const char* rule) {
    if (!holds) throw UserError(fmt::format("--{}={} is out of range.", option, value), rule);
  };
  require("steps", o.steps, o.steps >= 0 && o.steps <= most_steps, "Use 1 to 2^32 - 1 steps, or 0.");
  require("epochs", o.epochs, o.epochs >= 0 && o.epochs <= most_epochs, "Use 1 to 1000000 epochs, or 0.");
  require("global-batch", o.global_batch, o.global_batch >= 1 && o.global_batch <= most_sequences,
          "Use 1 to 1048576 sequences.");
  require("micro-batch", o.micro_batch, o.micro_batch >= 0, "Use at least one sequence, or 0.");
  require("sequence", o.sequence, o.sequence >= 0, "Use at least one token, or 0.");
  require("learning-rate", s.peak, s.peak >= 0, "Use a number that is not negative.");
  require("min-learning-rate", s.least, s.least >= 0, "Use a number that is not negative.");
  require("warmup", s.warmup, s.warmup >= 0, "Use a number of steps, or 0 for none.");
  require("beta1", o.adamw.beta1, o.adamw.beta1 >= 0 && o.adamw.beta1 < 1, "Use 0 <= beta1 < 1.");
  require("beta2", o.adamw.beta2, o.adamw.beta2 >= 0 && o.adamw.beta2 < 1, "Use 0 <= beta2 < 1.");
  require("epsilon", o.adamw.epsilon, o.adamw.epsilon > 0, "Use a positive number.");
  require("weight-decay", o.adamw.weight_decay, o.adamw.weight_decay >= 0, "Use a number that is not negative.");
  require("clip", o.clip, o.clip >= 0, "Use a positive norm, or 0 for no clipping.");
  require("dropout", o.dropout, o.dropout >= 0 && o.dropout < 1, "Use 0 <= dropout < 1.");
  require("temperature", o.sampling.temperature, o.sampling.temperature >= 0, "Use a number that is not negative.");
  require("top-p", o.sampling.top_p, o.sampling.top_p > 0 && o.sampling.top_p <= 1, "Use 0 < top-p <= 1.");
  require("sample", o.sample, o.sample >= 0 && o.sample <= most_sampled, "Use 1 to 1000000 tokens, or 0.");
  require("top-k", o.sampling.top_k, o.sampling.top_k >= 0, "Use a number of tokens, or 0 for all.");
  require("samples", o.samples, o.samples >= 1 && o.samples <= 1000, "Use 1 to 1000 samples.");
  require("threads", o.threads, o.threads >= 1 && o.threads <= 1024, "Use 1 to 1024 threads.");
  require("evaluate-every", o.evaluate_every, o.evaluate_every >= 0, "Use a number of steps, or 0.");
  require("checkpoint-every", o.checkpoint_every, o.checkpoint_every >= 0, "Use a number of steps, or 0.");
  require("stop-after", o.stop_after, o.stop_after >= 0, "Use a number of steps, or 0.");
  require("compare", o.compare, o.compare >= 0, "Use a number of steps, or 0 for no comparison.");
  if (o.steps > 0 && o.epochs > 0)
    throw UserError(fmt::format("--steps={} and --epochs={} both say how long to train.", o.steps, o.epochs),
                    "Use one of them.");
}

namespace {

void check_batch(const BatchShape& batch, const ModelConfig& config, std::int64_t share)
{
  if (batch.sequence > config.context)
    throw UserError(fmt::format("--sequence={} is longer than the context of model {}, {} tokens.", batch.sequence,
                                config.name, config.context),
                    fmt::format("Every position needs an embedding. Use --sequence={} or less, or --context={}.",
                                config.context, batch.sequence));
  if (config.mask.prefix > batch.sequence)
    throw UserError(
        fmt::format("--mask={} is longer than a sequence of {} tokens.", config.mask.text(), batch.sequence),
        "Tokens inside the prefix are given, not predicted. Use a smaller K, so that some are predicted.");
  if (share % batch.micro_batch != 0)
    throw UserError(
        fmt::format("--micro-batch={} does not divide the {} sequences of a step.", batch.micro_batch, share),
        "All micro-batches have the same number of sequences. Use a divisor, or choose another --global-batch.");
}

/// Refuses patterns of --freeze that match no tensor, or leave none to train.
void check_frozen(const std::string& asked, const ModelConfig& config)
{
  const ParameterTable table(config);
  std::vector<std::string> names;
  for (const Parameter& p : table.entries()) names.push_back(p.name);
  check_patterns("freeze", asked, names);
  if (std::ranges::all_of(table.entries(), &Parameter::frozen))
    throw UserError(fmt::format("--freeze={} leaves no tensor to train.", asked),
                    "Use patterns that match fewer tensors, such as h.0.*.");
}

/// Refuses a run that a single device could not repeat in exact arithmetic, with one sequence per micro-batch.
void check_comparable(std::int64_t compare, const ModelConfig& config, const BatchShape& batch)
{
  try {
    check_exact({.uneven = true}, config, {batch.global_batch, 1, batch.sequence});
  } catch (const UserError&) {
    throw UserError(
        fmt::format("--compare={} cannot be combined with --sequence={} and --channels={}.", compare,
                    batch.sequence, config.channels),
        "The reference run uses exact arithmetic: the sequence has to be divisible by 16 and the channels by 8.\n"
        "Change the one that is not, or leave --compare out.");
  }
}

void check_checkpoints(const TrainingOptions& o)
{
  if (o.resume && o.checkpoint.empty())
    throw UserError("--resume needs a checkpoint to resume from.", "Name the file: --checkpoint=FILE.h5.");
  if (o.resume && !o.initial.empty())
    throw UserError(fmt::format("--resume and --initial={} both give the parameters to start from.", o.initial),
                    "--resume continues a run, --initial begins a new run with its parameters. Use one of them.");
  if (o.compare > 0 && (o.resume || !o.initial.empty()))
    throw UserError(
        fmt::format("--compare={} cannot be combined with --{}.", o.compare, o.resume ? "resume" : "initial"),
        "The reference run starts from initial parameters, at step 0. Use one of the two.");
}

/// Refuses precisions that do not go together.
void check_precision(const TrainingOptions& o, std::int64_t micro_batches)
{
  const std::string use_f32 = "or --gradients=f32.";
  if (o.gradients == DType::bf16 && o.precision != DType::bf16)
    throw UserError("--gradients=bf16 cannot be combined with --precision=f32.",
                    "Gradients must not have less precision than parameters. Use --precision=bf16, " + use_f32);
  if (o.gradients == DType::bf16 && o.arithmetic != Sums::fast)
    throw UserError("--gradients=bf16 cannot be combined with --arithmetic=exact.",
                    "Every partial sum would be rounded to bf16, and partial sums differ between layouts.\n"
                    "Use --arithmetic=fast, " +
                        use_f32);
  if (o.gradients == DType::bf16 && micro_batches > 1)
    throw UserError(
        fmt::format("--gradients=bf16 cannot accumulate the gradients of {} micro-batches per step.",
                    micro_batches),
        "A sum in bf16 loses terms smaller than 1/256 of it. Use a --micro-batch of all sequences that a rank\n"
        "computes in a step, " +
            use_f32);
  if (!o.tf32) return;
  const std::string leave_out = " Leave --tf32 out.";
  if (o.device != DeviceKind::cuda)
    throw UserError("--tf32 cannot be combined with --device=cpu.",
                    "TF32 is a format of the tensor cores of a GPU." + leave_out);
  if (o.precision != DType::f32)
    throw UserError("--tf32 cannot be combined with --precision=bf16.",
                    "TF32 applies to products of f32 matrices, and this run has none." + leave_out);
  if (o.arithmetic != Sums::fast)
    throw UserError("--tf32 cannot be combined with --arithmetic=exact.",
                    "Exact arithmetic fixes the order of sums, but must not round their factors." + leave_out);
}

void check_sampling(const TrainingOptions& o)
{
  if (!o.prompt.empty() && !o.prompt_file.empty())
    throw UserError("--prompt and --prompt-file both say what a sample begins with.", "Use one of them.");
  if (o.sample > 0 && o.mask != "causal")
    throw UserError(fmt::format("--sample={} cannot be combined with --mask={}.", o.sample, o.mask),
                    "A model that sees the next tokens cannot predict them. Use --sample=0 or --mask=causal.");
}

}  // namespace

void check_options(const TrainingOptions& options, const Layout& layout)
{
  check_ranges(options);
  const ModelConfig config = options.config();
  const std::int64_t share = options.global_batch / layout.dp;
  const BatchShape batch = options.batch(share);
  check_batch(batch, config, share);
  check_step(config, options.global_batch, batch.sequence);
  check_precision(options, share / batch.micro_batch);
  check_sampling(options);
  check_checkpoints(options);
  check_frozen(options.freeze, config);
  if (options.arithmetic != Sums::fast) check_exact(layout, config, batch);
  if (options.arithmetic != Sums::fast && layout.tp > 1 && options.precision != DType::f32)
    throw UserError(
        fmt::format("--precision=bf16 with --tp={} cannot be combined with --arithmetic=exact.", layout.tp),
        "Partial sums would be rounded before they are added across ranks. Use --precision=f32, or "
        "--arithmetic=fast.");
  if (options.compare > 0) check_comparable(options.compare, config, batch);
}

std::string suggest_options(const TrainingOptions& options, std::int64_t share, const GradientLayout& sums,
                            const CategoryBytes& planned, std::int64_t capacity)
{
  const ModelConfig config = options.config();
  const auto of_micro_batches = [&](const TrainingOptions& o) {  // bytes that depend on the micro-batch
    const ActivationShape shape = o.activation_shape(share);
    return activation_bytes(config, shape) + workspace_bytes(config, shape) +
           Arithmetic(o.arithmetic).gradient_bytes(sums, share / shape.B).total();
  };
  const std::int64_t rest = planned.total() - of_micro_batches(options);
  TrainingOptions other = options;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  std::string smallest;
  for (std::int64_t B = options.batch(share).micro_batch; B > 0; --B) {
    const bool possible =
        (options.arithmetic == Sums::fast || std::has_single_bit(static_cast<std::uint64_t>(B))) &&
        (options.gradients == DType::f32 || B == share);
    if (share % B != 0 || !possible) continue;
    other.micro_batch = B;
    for (const bool recompute : {false, true}) {
      other.recompute_blocks = recompute;
      const std::int64_t needed = rest + of_micro_batches(other);
      const std::string asked = fmt::format("--micro-batch={}{}", B, recompute ? " --recompute=block" : "");
      if (needed <= capacity) return asked + " would fit.";
      if (needed < least) smallest = asked;
      least = std::min(least, needed);
    }
  }
  return fmt::format("Even {} needs {} bytes. Use a smaller model or more memory.", smallest, group_digits(least));
}

void check_enough_data(const TrainingOptions& options, const Tokens& tokens)
{
  const BatchShape batch = options.batch(options.global_batch);
  const std::int64_t vocabulary = options.config().vocabulary;
  if (options.architecture == Architecture::gpt2) {
    check_vocabulary(tokens, vocabulary);
    check_enough_tokens(tokens, batch.sequence, batch.global_batch);
    return;
  }
  if (vocabulary < tokens.vocabulary + special_tokens)
    throw UserError(fmt::format("--vocabulary={} is too small for the {} tokens of {} and the {} special tokens.",
                                vocabulary, tokens.vocabulary, tokens.name, special_tokens),
                    fmt::format("[PAD], [CLS], [SEP] and [MASK] come after the tokens of the text. Use "
                                "--vocabulary={} or more.",
                                tokens.vocabulary + special_tokens));
  check_enough_pairs(tokens, batch.sequence, batch.global_batch);
}

void check_fits_data(const TrainingOptions& options, const Tokens& tokens)
{
  check_prompt(options, tokens);
  const std::int64_t steps = options.schedule_over(options.sequences_of_epoch(tokens)).steps;
  if (steps > most_steps)
    throw UserError(fmt::format("--epochs={} are {} steps, more than 2^32 - 1.", options.epochs, steps),
                    "Use fewer epochs.");
}

}  // namespace rankwise
