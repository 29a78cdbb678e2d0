#include "lessons/parallel/zero/fsdp_units.hpp"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"
#include "lessons/parallel/zero/bucket_shards.hpp"

namespace rankwise {

namespace {

/// Runs of table units, one per FSDP unit, last first.
std::vector<Range> runs_of(const ParameterTable& table, UnitKind unit)
{
  const Range all = table.units();
  if (unit == UnitKind::model) return {all};
  const std::int64_t of_a_run = unit == UnitKind::block ? 2 : 1;
  std::vector<Range> runs{{all.end() - 1, 1}};
  for (std::int64_t end = all.end() - 1; end > all.first + 1; end -= of_a_run)
    runs.push_back({end - of_a_run, of_a_run});
  runs.push_back({all.first, 1});
  return runs;
}

/// Elements of a run of table units, which are adjacent.
Range elements_of_run(const ParameterTable& table, Range run)
{
  Range all{};
  for (std::int64_t unit = run.first; unit < run.end(); ++unit) {
    const Range elements = table.unit_elements(static_cast<int>(unit));
    if (all.empty()) all.first = elements.first;
    all.count += elements.count;
  }
  return all;
}

/// FSDP unit that holds a unit of the table; nothing if all of its tensors are replicated.
std::optional<std::size_t> gathered_with(const std::vector<FsdpUnit>& units, std::int64_t unit)
{
  const auto found =
      std::find_if(units.begin(), units.end(), [&](const Bucket& bucket) { return bucket.units.contains(unit); });
  if (found == units.end()) return std::nullopt;
  return static_cast<std::size_t>(found - units.begin());
}

bool has(const std::vector<std::size_t>& units, std::size_t unit)
{
  return std::find(units.begin(), units.end(), unit) != units.end();
}

/// FSDP units that the places @p first to @p last, inclusive, need; in the order of their first use.
std::vector<std::size_t> needs_of(const std::vector<GatherStep>& plan, std::size_t first, std::size_t last)
{
  std::vector<std::size_t> needs;
  for (std::size_t s = first; s < std::min(last + 1, plan.size()); ++s)
    for (const std::size_t unit : plan[s].needs)
      if (!has(needs, unit)) needs.push_back(unit);
  return needs;
}

/// FSDP units that each use needs.
std::vector<std::vector<std::size_t>> needs_of_uses(const std::vector<FsdpUnit>& units,
                                                    const std::vector<Use>& uses)
{
  std::vector<std::vector<std::size_t>> needs;
  for (const Use& use : uses) {
    std::vector<std::size_t>& of_use = needs.emplace_back();
    for (const std::int64_t unit : use)
      if (const auto with = gathered_with(units, unit); with && !has(of_use, *with)) of_use.push_back(*with);
  }
  return needs;
}

}  // namespace

void declare(OptionTable& table, GatherOptions& o)
{
  const std::string group = "Sharded parameters";
  table.add_choice(group, "unit", o.unit,
                   {{"block", UnitKind::block}, {"branch", UnitKind::branch}, {"model", UnitKind::model}},
                   "gathered and freed as a whole; embedding and head are units of their own, except with model");
  table.add(group, "prefetch", o.prefetch, "gather a unit this many places ahead of its use; 0: when it is used");
  table.add_choice(group, "reshard", o.reshard,
                   {{"after-forward", Reshard::after_forward}, {"after-backward", Reshard::after_backward}},
                   "when units that were gathered for the forward pass are freed");
  table.add(group, "persist", o.persist, "tensors of at most this many elements are replicated on every rank");
}

std::vector<FsdpUnit> make_fsdp_units(const ParameterTable& table, UnitKind unit)
{
  std::vector<FsdpUnit> units;
  for (const Range& run : runs_of(table, unit))
    if (const Range elements = elements_of_run(table, run); !elements.empty()) units.push_back({run, elements});
  if (!table.replicated().empty()) units.push_back({{0, 0}, table.replicated()});
  return units;
}

std::vector<std::size_t> places_of(const std::vector<FsdpUnit>& units, const std::vector<Use>& uses)
{
  const std::vector<std::vector<std::size_t>> needs = needs_of_uses(units, uses);
  std::vector<std::size_t> places;
  for (std::size_t u = 0; u < uses.size(); ++u)
    places.push_back(u == 0 ? 0 : places.back() + (needs[u] == needs[u - 1] ? 0 : 1));
  return places;
}

std::vector<Use> uses_of(const TrainingOptions& options, bool training)
{
  const std::int64_t last = unit_count(options.config()) - 1;
  std::vector<Use> uses;
  for (std::int64_t u = 0; u < last; ++u) uses.push_back({u});
  uses.push_back({last, 0});
  for (std::int64_t u = last - 1; training && u > 0; --u) {
    if (options.recompute_blocks && u % 2 == 0) uses.insert(uses.end(), {{u - 1}, {u}});
    uses.push_back({u});
  }
  return uses;
}

std::vector<GatherStep> plan_gathers(const std::vector<FsdpUnit>& units, const std::vector<Use>& uses,
                                     const GatherOptions& options)
{
  std::vector<GatherStep> plan;
  for (const std::vector<std::size_t>& needs : needs_of_uses(units, uses))
    if (plan.empty() || plan.back().needs != needs) plan.push_back({needs, {}, {}});
  if (options.reshard == Reshard::never) return plan;

  // BEGIN EXERCISE 06.1
  std::vector<std::size_t> there;
  const auto K = static_cast<std::size_t>(options.prefetch);
  for (std::size_t s = 0; s < plan.size(); ++s) {
    const std::vector<std::size_t> wanted = needs_of(plan, s, s + K);
    const std::vector<std::size_t> kept =
        options.reshard == Reshard::after_forward ? wanted : needs_of(plan, s, plan.size());
    for (const std::size_t unit : there)
      if (!has(kept, unit)) plan[s].frees.push_back(unit);
    std::erase_if(there, [&](std::size_t unit) { return !has(kept, unit); });
    for (const std::size_t unit : wanted) {
      if (has(there, unit)) continue;
      plan[s].gathers.push_back(unit);
      there.push_back(unit);
    }
  }
  // END EXERCISE
  return plan;
}

bool stays_whole(const std::vector<GatherStep>& gathers, std::size_t unit)
{
  return std::none_of(gathers.begin(), gathers.end(),
                      [&](const GatherStep& step) { return has(step.gathers, unit); });
}

std::int64_t whole_elements(const StepPlan& plan, const std::vector<GatherStep>& gathers)
{
  std::int64_t elements = 0;
  for (std::size_t unit = 0; unit < plan.buckets.size(); ++unit)
    if (stays_whole(gathers, unit)) elements += plan.buckets[unit].elements.count;
  return elements;
}

std::int64_t kept_bytes(const StepPlan& plan, const std::vector<GatherStep>& gathers, RankOf rank)
{
  const std::vector<Range> own = owned_shards(plan, rank);
  std::int64_t elements = whole_elements(plan, gathers);
  for (std::size_t unit = 0; unit < own.size(); ++unit)
    if (!stays_whole(gathers, unit)) elements += own[unit].count;
  return bytes_of(plan.parameters) * elements;
}

std::int64_t gathered_bytes(const StepPlan& plan, const std::vector<GatherStep>& gathers)
{
  std::int64_t now = 0, most = 0;
  for (const GatherStep& step : gathers) {
    for (const std::size_t unit : step.frees) now -= plan.buckets[unit].elements.count;
    for (const std::size_t unit : step.gathers) now += plan.buckets[unit].elements.count;
    most = std::max(most, now);
  }
  return bytes_of(plan.parameters) * most;
}

std::vector<CollectiveShape> collectives_of(const StepPlan& plan, const std::vector<GatherStep>& gathers,
                                            std::int64_t ranks)
{
  std::vector<std::int64_t> times(plan.buckets.size());
  for (const GatherStep& step : gathers)
    for (const std::size_t unit : step.gathers) times[unit] += sums_of_step(plan, ranks);
  for (std::int64_t& of_unit : times)
    of_unit = std::max<std::int64_t>(of_unit, 1);  // after the update, if it stays whole
  return collectives_of(plan, ranks, times);
}

std::string describe_units(const StepPlan& plan, const std::vector<GatherStep>& gathers)
{
  const Range replicated = plan.table.replicated();
  const auto stay = std::count_if(plan.table.entries().begin(), plan.table.entries().end(),
                                  [&](const Parameter& p) { return replicated.contains(p.elements.first); });
  std::int64_t elements = 0;
  for (const GatherStep& step : gathers)
    for (const std::size_t unit : step.gathers) elements += plan.buckets[unit].elements.count;
  return fmt::format(
      "{} tensors, {} elements, are replicated\n"
      "{} elements are gathered per micro-batch, at most {} bytes of them at a time\n"
      "places from left to right; g: gather starts, U: used, G: both, -: stays gathered\n"
      "{}",
      stay, group_digits(replicated.count), group_digits(elements), group_digits(gathered_bytes(plan, gathers)),
      picture(plan.buckets, gathers));
}

void check_gathers(const GatherOptions& options, const std::vector<Use>& uses)
{
  const auto places = static_cast<std::int64_t>(uses.size());
  if (options.prefetch < 0 || options.prefetch >= places)
    throw UserError(options.prefetch < 0
                        ? fmt::format("--prefetch={} is out of range.", options.prefetch)
                        : fmt::format("--prefetch={} is out of range: a micro-batch of this model uses "
                                      "parameters at {} places.",
                                      options.prefetch, places),
                    "Use 0 to gather a unit when it is needed, or 1 to gather it while the one before it is used.");
  if (options.persist < 0)
    throw UserError(fmt::format("--persist={} is out of range.", options.persist),
                    "Use a number of elements: tensors of at most this size are replicated. 0 shards all of them.");
}

std::string picture(const std::vector<FsdpUnit>& units, const std::vector<GatherStep>& plan)
{
  std::string lines;
  for (std::size_t unit = units.size(); unit-- > 0;) {
    const Bucket& bucket = units[unit];
    if (bucket.units.empty()) continue;
    lines += fmt::format("{:>13} |", bucket.units.count == 1
                                         ? fmt::format("unit {}", bucket.units.first)
                                         : fmt::format("units {}-{}", bucket.units.first, bucket.units.end() - 1));
    bool there = false;
    for (const GatherStep& step : plan) {
      const bool gathers = has(step.gathers, unit), used = has(step.needs, unit);
      there = (there && !has(step.frees, unit)) || gathers;
      lines += gathers ? (used ? 'G' : 'g') : used ? 'U' : there ? '-' : ' ';
    }
    lines += "|\n";
  }
  return lines;
}

}  // namespace rankwise
