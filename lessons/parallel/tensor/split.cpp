#include "lessons/parallel/tensor/split.hpp"

#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/error.hpp"
#include "common/messages/mesh.hpp"

namespace rankwise {

// ---- Options --------------------------------------------------------------------------------------------------------

void declare(OptionTable& table, SplitOptions& o)
{
  const std::string group = "Tensor parallelism";
  table.add(group, "tp", o.tp, "ranks that divide a model; 0: the number of ranks / --dp");
  table.add(group, "dp", o.dp, "replicas of the divided model, which divide the batch");
  table.add(group, "sequence-parallel", o.sequence_parallel,
            "between the divided layers each rank has 1/t of each sequence");
  table.add(group, "regather", o.regather,
            "keep only this rank's normalised rows, and gather all again in the backward pass");
}

namespace {

/// Refuses a number of ranks that does not divide @p n.
/// @param what   the things that are divided, as "heads".
/// @param whole  the model or sequence that has them.
void check_divides(int parts, std::int64_t n, const std::string& what, const std::string& whole,
                   const std::string& remedy)
{
  if (n % parts == 0) return;
  std::vector<std::int64_t> possible;
  for (std::int64_t t = 1; t <= n && possible.size() < 8; ++t)
    if (n % t == 0) possible.push_back(t);
  throw UserError(fmt::format("--tp={} does not divide the {} {} of {}.", parts, n, what, whole),
                  fmt::format("Each rank has as many {} as the others: use --tp={}{}.", what,
                              fmt::join(possible, ", "), remedy));
}

}  // namespace

void check_split(const SplitOptions& options, const ModelConfig& config, std::int64_t sequence, int ranks)
{
  if (options.tp < 0)
    throw UserError(fmt::format("--tp={} is not a number of ranks.", options.tp),
                    "Use the number of ranks that divide a model, or 0 for the number of ranks / --dp.");
  if (options.tp == 0 && options.dp > 0 && ranks % options.dp != 0)
    throw UserError(fmt::format("{} ranks cannot be shared out among --dp={} replicas.", ranks, options.dp),
                    "Each replica has as many ranks as the others: use --dp=N where N divides the ranks.");
  const int parts = options.parts(ranks);
  check_mesh({{"dp", options.dp}, {"tp", parts}}, ranks);
  check_divides(parts, config.heads, "heads", "the model", ", or another number of --heads");
  check_divides(parts, 4 * config.channels, "hidden channels", "the model", ", or another number of --channels");
  if (options.sequence_parallel) check_divides(parts, sequence, "tokens", "a sequence", ", or another --sequence");
  if (options.regather && !options.sequence_parallel)
    throw UserError("--regather needs --sequence-parallel: without it every rank has all normalised rows anyway.",
                    "Add --sequence-parallel, or leave --regather out.");
}

// ---- Parts ----------------------------------------------------------------------------------------------------------

ActivationShape divided(ActivationShape whole, const SplitOptions& options, Part part)
{
  whole.part = part;
  whole.tokens = options.sequence_parallel ? part : Part{};
  whole.regather = options.regather;
  return whole;
}

std::vector<Range> owned_elements(const ParameterTable& table, Part part)
{
  std::vector<Range> ranges;
  for (const Parameter& p : table.entries()) {
    if (p.split == Split::none && part.index != 0) continue;
    if (!ranges.empty() && ranges.back().end() == p.elements.first)
      ranges.back().count += p.elements.count;
    else
      ranges.push_back(p.elements);
  }
  return ranges;
}

std::string describe_split(const ModelConfig& config, Part part)
{
  const ParameterTable table(config, part, {0, 3});
  std::string text = fmt::format("tensor-parallel rank {} of {} has\n", part.index, part.count);
  for (const Parameter& p : table.entries()) {
    const std::string is = p.split == Split::none ? "all" : p.split == Split::rows ? "rows" : "columns";
    std::vector<std::string> runs;
    for (const Slab& slab : table.slabs(p)) {
      const Range run = p.split == Split::rows ? slab.rows : slab.columns;
      if (p.split != Split::none) runs.push_back(fmt::format("{}..{}", run.first, run.end() - 1));
    }
    text += fmt::format("  {:22} {:>14}  {}{}{}\n", p.name, p.shape.text(), is, runs.empty() ? "" : " ",
                        fmt::join(runs, " "));
  }
  return text;
}

}  // namespace rankwise
