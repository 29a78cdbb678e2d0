#include "lessons/17_choose_a_layout/plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace rankwise {

bool fits(const RankMemory& memory, const Machine& machine)
{
  return memory.total() <= machine.memory && memory.host * machine.gpus_per_node <= machine.host_memory;
}

std::vector<Plan> fastest(const Job& job, const LayoutWishes& wishes, const Machine& machine, std::int64_t gpus,
                          std::size_t most)
{
  std::vector<Plan> all;
  for (const PlannedLayout& layout :
       all_layouts(job.system, job.model, wishes, gpus, job.global_batch, machine.gpus_per_node))
    all.push_back({layout, step_time(job, layout, machine), {}});
  std::ranges::stable_sort(all, {}, [](const Plan& plan) { return plan.time.total(); });

  // Times are cheap, memory is not: it is computed from the fastest layout on, until enough of them fit.
  std::vector<Plan> fitting;
  for (Plan& plan : all) {
    if (fitting.size() == most) break;
    if (least_bytes(job, plan.layout) > machine.memory) continue;
    plan.memory = largest_memory(job, plan.layout, machine.memory);
    if (fits(plan.memory, machine)) fitting.push_back(std::move(plan));
  }
  return fitting;
}

bool any_fits(const Job& job, const LayoutWishes& wishes, const Machine& machine, std::int64_t gpus)
{
  std::vector<std::pair<double, PlannedLayout>> all;
  for (const PlannedLayout& layout :
       all_layouts(job.system, job.model, wishes, gpus, job.global_batch, machine.gpus_per_node))
    if (const double least = least_bytes(job, layout); least <= machine.memory) all.emplace_back(least, layout);
  std::ranges::stable_sort(all, {}, [](const auto& candidate) { return candidate.first; });
  return std::ranges::any_of(all, [&](const auto& candidate) {
    return fits(largest_memory(job, candidate.second, machine.memory), machine);
  });
}

std::optional<Plan> smallest(const Job& job, const LayoutWishes& wishes, const Machine& machine, std::int64_t gpus)
{
  std::vector<PlannedLayout> all =
      all_layouts(job.system, job.model, wishes, gpus, job.global_batch, machine.gpus_per_node);
  std::ranges::stable_sort(all, {}, [&](const PlannedLayout& layout) { return least_bytes(job, layout); });
  std::optional<Plan> least;
  for (const PlannedLayout& layout : all) {
    if (least && least_bytes(job, layout) >= least->memory.total()) break;
    const double most = least ? least->memory.total() : std::numeric_limits<double>::infinity();
    RankMemory memory = largest_memory(job, layout, most);
    if (memory.total() < most) least = Plan{layout, step_time(job, layout, machine), std::move(memory)};
  }
  return least;
}

std::string reason(const Plan& faster, const Plan& slower)
{
  std::vector<std::pair<double, const char*>> parts;
  for (const StepPart& part : step_parts())
    parts.emplace_back(slower.time.*part.seconds - faster.time.*part.seconds, part.name);
  std::ranges::sort(parts, std::greater(), [](const auto& part) { return std::abs(part.first); });
  std::vector<std::string> texts;
  for (const auto& [seconds, what] : parts)
    if (texts.size() < 3 && std::abs(seconds) > 0.1 * std::abs(parts[0].first) && std::abs(seconds) > 1e-6)
      texts.push_back(fmt::format("{:.3g} s {} {}", std::abs(seconds), seconds > 0 ? "more" : "less", what));
  if (texts.empty()) return "as fast";
  return fmt::format("{:+.1f} %: {}", 100 * (slower.time.total() / faster.time.total() - 1),
                     fmt::join(texts, ", "));
}

}  // namespace rankwise
