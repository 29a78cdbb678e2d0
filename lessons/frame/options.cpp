#include "lessons/frame/options.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/program/rank_failure.hpp"

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

Topology LessonOptions::topology(int N) const
{
  return topology_of_ranks(N, std::max(messages.ranks_per_node, 0), device);
}

void declare_output(OptionTable& table, LessonOptions& options)
{
  table.add_file("Output", "record", options.record, FileUse::replace,
                 "HDF5 file for what each rank computes, tensor by tensor, to compare runs with compare_records");
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
  if (!options.dry_run && !can_survive()) throw UserError("--elastic is not possible here.", why_not_survive());
}

}  // namespace rankwise
