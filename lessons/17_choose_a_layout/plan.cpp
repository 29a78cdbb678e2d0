#include "lessons/17_choose_a_layout/plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace rankwise {

bool fits(const RankMemory& memory, const Machine& machine)
{
  return memory.total() <= machine.memory && memory.host * machine.gpus_per_node <= machine.host_memory;
}

namespace {

/// Which layouts can fit. Those that differ in the micro-batch and in the stages of a rank alone are judged together: one
/// sequence and one stage need least.
class Fitting {
 public:
  Fitting(const Job& job, const LayoutWishes& wishes, const Machine& machine)
      : job_(job), wishes_(wishes), machine_(machine)
  {
  }

  bool can_fit(PlannedLayout layout)
  {
    if (wishes_.micro_batch == 0) layout.micro_batch = 1;
    if (wishes_.chunks == 0) layout.chunks = 1;
    const auto [known, is_new] = known_.try_emplace(describe(layout, job_.global_batch), false);
    if (is_new)
      known->second = least_bytes(job_, layout) <= machine_.memory &&
                      fits(largest_memory(job_, layout, machine_.memory), machine_);
    return known->second;
  }

 private:
  const Job& job_;
  const LayoutWishes& wishes_;
  const Machine& machine_;
  std::map<std::string, bool> known_;
};

}  // namespace

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
  Fitting layouts(job, wishes, machine);
  for (Plan& plan : all) {
    if (fitting.size() == most) break;
    if (least_bytes(job, plan.layout) > machine.memory || !layouts.can_fit(plan.layout)) continue;
    plan.memory = largest_memory(job, plan.layout, machine.memory);
    if (fits(plan.memory, machine)) fitting.push_back(std::move(plan));
  }
  return fitting;
}

bool any_fits(const Job& job, const LayoutWishes& wishes, const Machine& machine, std::int64_t gpus)
{
  std::vector<PlannedLayout> all =
      all_layouts(job.system, job.model, wishes, gpus, job.global_batch, machine.gpus_per_node);
  std::ranges::stable_sort(all, {}, [&](const PlannedLayout& layout) { return least_bytes(job, layout); });
  Fitting layouts(job, wishes, machine);
  return std::ranges::any_of(all, [&](const PlannedLayout& layout) { return layouts.can_fit(layout); });
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
