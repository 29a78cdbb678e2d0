#include "lessons/frame/options.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/json.hpp"
#include "common/base/partition.hpp"
#include "common/program/rank_failure.hpp"
#include "gpt2/record/record.hpp"

namespace rankwise {

Algorithm default_algorithm(const Arithmetic& arithmetic)
{
  return arithmetic.continues_tree() ? Algorithm::halving : Algorithm::ring;
}

void check_order(Algorithm algorithm, const Arithmetic& arithmetic)
{
  if (!arithmetic.continues_tree() || algorithm == Algorithm::halving || algorithm == Algorithm::shared) return;
  throw UserError(
      fmt::format("--collectives={} is not possible with --arithmetic=exact.", name_of(algorithm)),
      "It does not add in the order of the tree that exact sums need. Use --collectives=halving or shared, "
      "or --arithmetic=fast.");
}

const Topology& LessonOptions::topology(int N) const
{
  return topology_of_ranks(N, std::max(messages.ranks_per_node, 0), device);
}

Division divide_batch(const LessonOptions& options, const Layout& layout, int replica, const BatchShape& batch)
{
  const std::int64_t B = batch.micro_batch;
  return {.layout = layout,
          .replica = {replica, static_cast<int>(layout.dp)},
          .sequences = Partition(options.global_batch, layout.dp).shard(replica),
          .batch = batch,
          .shape = options.activation_shape(B).with_sequences(B)};
}

Division divide(const LessonOptions& options, RankOf rank)
{
  return divide_batch(options, {.dp = rank.ranks, .uneven = true}, rank.rank, options.cut_batch(rank.ranks));
}

void check_options(const LessonOptions& options, const Division& division)
{
  TrainingOptions chosen = options;
  chosen.micro_batch = division.batch.micro_batch;
  check_options(chosen, division.layout);
}

void declare_output(OptionTable& table, LessonOptions& options)
{
  table.add_file("Output", "record", options.record, FileUse::replace,
                 "HDF5 file for what each rank computes, tensor by tensor, to compare runs with compare_records",
                 record_seal);
  table.add("Output", "record-values", options.record_values,
            "with --record: tensors whose values are kept too, by patterns as logits,h.0.*; empty: none");
  table.add_choice<bool>("Output", "check-against", options.check_against_reference,
                         {{"none", false}, {"reference", true}},
                         "run to compare every tensor with: that on a single device; names the first that differs");
  table.add_file("Output", "html", options.html, FileUse::print,
                 "page of the run for a browser: losses, times, memory, traffic, checks");
}

void declare(OptionTable& table, LessonOptions& options)
{
  declare(table, static_cast<TrainingOptions&>(options));
  declare(table, options.messages);
  table.add("Messages", "check-every", options.check_every,
            "steps between comparisons of replicated parameters; 0: only at the end");
  table.add("Run", "ranks", options.ranks,
            "with --dry-run: number of ranks to plan for; 0: those that were started");
  declare_output(table, options);
  table.add("Output", "watch", options.watch,
            "draw in the terminal what each rank does now, and for whom it waits");
  table.add_file("Output", "script", options.script, FileUse::print,
                 "with --dry-run and --link: file for what each rank does in two steps, a line of JSON each");
}

void declare_elastic(OptionTable& table, LessonOptions& options, bool shards)
{
  table.add("Elastic", "elastic", options.elastic, "when ranks die, go on with the rest (needs an MPI with ULFM)");
  if (shards)
    table.add("Elastic", "copies", options.copies,
              "with --elastic: ranks that have a copy of each shard of the model");
  else
    options.copies = 0;
}

void check_elastic(const LessonOptions& options, int N)
{
  if (!options.elastic) return;
  if (options.device != DeviceKind::cpu)
    throw UserError("--elastic with --device=cuda.", "Groups of GPUs do not go on without one. Use --device=cpu.");
  if (options.algorithm() == Algorithm::shared)
    throw UserError("--elastic with --collectives=shared.",
                    "Memory that ranks share is not freed when one of them dies. Use another algorithm.");
  if (options.copies < 0 || options.copies >= std::max(N, 2))
    throw UserError(fmt::format("--copies={} is out of range.", options.copies),
                    fmt::format("Each shard has copies on 0 to {} other ranks.", N - 1));
  if (options.ranks == 0 && !can_survive()) throw UserError("--elastic is not possible here.", why_not_survive());
}

std::string divisors(std::int64_t number)
{
  std::string text;
  for (std::int64_t divisor = 1; divisor <= number; ++divisor)
    if (number % divisor == 0) text += fmt::format("{}{}", text.empty() ? "" : ", ", divisor);
  return text;
}

std::vector<Effect> effects_of(const ExpertConfig& experts)
{
  std::vector<Effect> effects;
  for (const char* option : {"expert-every", "capacity-factor", "auxiliary-loss"})
    effects.push_back({option, experts.count > 1, "with --experts=1", "It has no effect. Use more experts."});
  return effects;
}

void check_effects(const OptionTable& table, const LessonOptions& o, std::int64_t steps)
{
  const std::string in_run = fmt::format("in a run of {} steps", steps), no_effect = "It has no effect. ";
  const std::string fewer = fmt::format("Use {} or less, or train longer.", steps);
  const std::string name_checkpoint = no_effect + "Name the file: --checkpoint=FILE.h5.";
  const bool decays = o.schedule.decay == Decay::cosine, draws = o.sampling.temperature > 0;
  std::vector<Effect> effects{
      {"ranks", o.dry_run, "without --dry-run",
       "A run has the ranks that were started: mpirun -np N. Only a dry run plans for others."},
      {"script", o.dry_run && !o.messages.link.empty(), "without --dry-run and --link",
       "The script is that of the steps that a dry run rehearses on the links of --link: add both."},
      {"record-values", !o.record.empty(), "without --record",
       "The values are part of the record: add --record=FILE."},
      {"flops", !o.messages.link.empty() || table.json().contains("partition"), "without --link",
       "It is the rate of the virtual clock: add --link=5us,10GB/s."},  // --partition: of schedules too
      {"copies", o.elastic, "without --elastic", "Copies take the place of ranks that die: add --elastic."},
      {"warmup", o.schedule.warmup <= steps, in_run, "The warm-up would not end. " + fewer},
      {"warmup", o.schedule.warmup < steps || !decays, in_run,
       "The rate of --learning-rate-schedule=cosine would not fall. Use fewer, or train longer."},
      {"min-learning-rate", decays, "without a rate that falls",
       no_effect + "Add --learning-rate-schedule=cosine."},
      {"min-learning-rate", o.schedule.least <= o.schedule.peak,
       fmt::format("is above --learning-rate={}", o.schedule.peak), "The rate falls to it: use a lower one."},
      {"checkpoint-every", !o.checkpoint.empty(), "without a checkpoint", name_checkpoint},
      {"checkpoint-every", o.checkpoint_every <= steps, in_run, no_effect + fewer},
      {"stop-after", !o.checkpoint.empty(), "without a checkpoint to continue from",
       "Name the file: --checkpoint=FILE.h5. For fewer steps use --steps."},
      {"stop-after", o.stop_after <= steps, in_run, no_effect + fewer},
      {"evaluate-every", o.evaluate_every <= steps, in_run, no_effect + fewer},
      {"check-every", o.check_every <= steps, in_run, no_effect + fewer},
      {"compare", o.compare <= steps, in_run, fewer},
      {"samples", draws, "with --temperature=0",
       "The most likely token is always taken, and all samples are equal: use a higher temperature."},
      {"top-k", o.sampling.top_k < o.config().vocabulary, fmt::format("of {} tokens", o.config().vocabulary),
       "Draw from fewer than all of the vocabulary."},
      {"top-k", draws, "with --temperature=0", "The most likely token is always taken: use a higher temperature."},
      {"top-p", draws, "with --temperature=0", "The most likely token is always taken: use a higher temperature."}};
  for (const char* option : {"prompt", "prompt-file", "stop", "samples", "temperature", "top-k", "top-p"})
    effects.push_back({option, o.sample > 0, "without a sample",
                       no_effect + "Add --sample=N, the number of tokens to generate."});
  for (const char* option : {"trace", "log", "record", "html"})
    effects.push_back({option, !o.dry_run, "with --dry-run",
                       "A dry run makes no step that the file could show. Use --report=FILE.json, or run without "
                       "--dry-run."});
  table.check_effects(effects);
  table.check_effects(effects_of(o.experts));
}

}  // namespace rankwise
