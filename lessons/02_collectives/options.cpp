#include "lessons/02_collectives/options.hpp"

#include <utility>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/cuda/devices.hpp"
#include "common/messages/algorithm.hpp"
#include "common/program/placement.hpp"
#include "lessons/02_collectives/measure.hpp"
#include "lessons/frame/vector_options.hpp"

namespace rankwise {

namespace {

/// The values of an option, as pairs for OptionTable.
std::vector<std::pair<std::string, std::string>> choices(const std::vector<std::string>& words)
{
  std::vector<std::pair<std::string, std::string>> all;
  for (const std::string& word : words) all.emplace_back(word, word);
  return all;
}

}  // namespace

const std::vector<std::string>& collective_names()
{
  static const std::vector<std::string> names{"reduce-scatter", "all-gather", "all-reduce",   "broadcast",
                                              "reduce",         "all-to-all", "all-to-all-v", "barrier"};
  return names;
}

CollectiveOptions::CollectiveOptions()
{
  std::vector<std::string> collectives{"all"}, ways{"all", "textbook-ring", "naive", "pairwise", "bruck"};
  collectives.insert(collectives.end(), collective_names().begin(), collective_names().end());
  for (const auto& [word, meaning] : algorithms()) ways.push_back(word);
  std::vector<std::pair<std::string, DType>> types;
  for (const DType t : {DType::f32, DType::bf16, DType::f64, DType::i32, DType::i64, DType::u8})
    types.emplace_back(name_of(t), t);

  table.add_choice("Collectives", "collective", collective, choices(collectives), "what the ranks do together");
  table.add_choice("Collectives", "collectives", algorithm, choices(ways), "algorithm that performs it");
  table.add("Collectives", "count", count, "elements of each rank's vector");
  table.add_choice("Collectives", "type", type, types, "of the elements");
  table.add("Collectives", "root", root, "rank that broadcasts, or receives the sum of reduce");
  table.add("Ranks", "ranks-per-node", ranks_per_node, "ranks per pretended node; 0: the real machines");
  table.add("Ranks", "check-messages", check_messages, "compare the calls of all ranks before each collective");
  declare_transport(table, "Ranks", transport);
  declare_device(table, device);
  table.add("Run", "repeats", repeats, "timed calls, of which the median is reported");
  table.add_file("Run", "report", report, FileUse::print, "where to write the report");
  table.add_file("Run", "trace", trace, FileUse::print, "where to write a trace of events");
  table.add("Run", "dry-run", dry_run, "print the formulas and send nothing");
}

void check_options(const CollectiveOptions& options, const Session& session)
{
  check_vectors(options.count, std::int64_t{1} << 33, options.root, session.ranks(), options.repeats);
  if (options.ranks_per_node < 0)
    throw UserError(fmt::format("--ranks-per-node={} is not a number of ranks.", options.ranks_per_node),
                    "Use 1 or more, or 0 for the machines as they are.");
  const bool sums = options.collective == "all" || options.collective.find("reduce") != std::string::npos;
  if (sums && options.type == DType::u8)
    throw UserError(fmt::format("--type=u8 with --collective={}: bytes cannot be summed.", options.collective),
                    "Use --collective=all-gather, broadcast or barrier, or another type.");
  const Candidate asked{options.collective, options.algorithm};
  if (options.collective != "all" && options.algorithm != "all" && !asked.exists())
    throw UserError(
        fmt::format("--collectives={} with --collective={}.", options.algorithm, options.collective),
        "all-reduce alone has naive and textbook-ring; all-to-all has pairwise, bruck, library and auto, "
        "all-to-all-v those but bruck; all others have ring, tree, halving, hierarchical, shared, library "
        "and auto. Choose one of these, or all.");
  if ((options.collective == "all-to-all" || options.algorithm == "bruck") && options.count % session.ranks() != 0)
    throw UserError(
        fmt::format("--count={} does not give blocks of one size to {} ranks.", options.count, session.ranks()),
        fmt::format("Use a multiple of {}, or --collective=all-to-all-v.", session.ranks()));
  const std::string elsewhere = fmt::format("with --collective={}", options.collective),
                    runs = "A dry run times nothing: leave --dry-run out.";
  const bool barrier = options.collective == "barrier";
  const bool rooted =
      options.collective == "all" || options.collective == "broadcast" || options.collective == "reduce";
  options.table.check_effects({{"count", !barrier, elsewhere, "A barrier has no elements: use another collective."},
                               {"type", !barrier, elsewhere, "A barrier has no elements: use another collective."},
                               {"root", rooted, elsewhere, "Use --collective=broadcast or reduce."},
                               {"repeats", !options.dry_run, "with --dry-run", runs},
                               {"trace", !options.dry_run, "with --dry-run", runs}});
  check_algorithm(asked.of_group(), options.topology());
  check_transport(options.transport, options.device);
  if (options.dry_run) return;
  check_device(options.device);
  check_own_gpus(options.transport, options.device);
  const int vectors =
      options.device == DeviceKind::cuda ? 1 : 5;  // own, two expected sums, sent, result; only one on a GPU
  CategoryBytes least;
  least[Category::workspace] = vectors * options.count * bytes_of(options.type);
  check_device_capacity(least, options.device, "Use a smaller --count, or fewer ranks.");
}

}  // namespace rankwise
