#include "lessons/parallel/offload/offload_costs.hpp"

#include "gpt2/gradient_sum.hpp"
#include "lessons/frame/plan.hpp"
#include "lessons/parallel/offload/offload_report.hpp"
#include "lessons/parallel/zero/received_shards.hpp"

namespace rankwise {

OffloadPlan offload_plan(const ZeroOffloadOptions& options, RankOf rank)
{
  return {options.offload, step_plan(options), gathers(options), rank, options.clip > 0};
}

void move_to_tiers(Costs& costs, const OffloadPlan& offload)
{
  const CategoryBytes all = in_tier(Tier::device, costs.kept);
  for (TierBytes* bytes : {&costs.kept, &costs.most}) {
    CategoryBytes& device = in_tier(Tier::device, *bytes);
    for (const Category category : {Category::parameters, Category::gradients, Category::optimizer})
      if (offload.tier_of(category) != Tier::device) device[category] -= all[category];
    if (offload.tier_of(Category::gradients) != Tier::device)  // what is received from other ranks stays
      device[further_sums] =
          ReceivedShards::bytes(sums_of(offload.step), offload.own, separate_ranks(offload.step, offload.ranks));
    if (offload.tier_of(Category::parameters) != Tier::device)
      device[Category::parameters] +=
          bytes_of(offload.step.parameters) * whole_elements(offload.step, offload.gathers);
    for (std::size_t tier = 0; tier < tier_count; ++tier) (*bytes)[tier] += tier_bytes(offload)[tier];
  }
}

Costs costs(const ZeroOffloadOptions& options, RankOf rank)
{
  // Lesson 06's device memory, with what is offloaded in the tiers that store it.
  Costs costs = rankwise::costs(static_cast<const Zero3Options&>(options), rank);
  move_to_tiers(costs, offload_plan(options, rank));
  return costs;
}

std::string suggest_options(const ZeroOffloadOptions& options, int N, std::int64_t bytes)
{
  ZeroOffloadOptions o = options;
  SmallerRun run([&] { return in_tier(Tier::device, costs(o, {0, N}).most).total(); }, bytes);
  if (run.fits_with("--offload=all", o.offload.what, Offload::all) ||
      run.fits_with("--recompute=block", o.recompute_blocks, true) || fits_with_one_sequence(run, o) ||
      run.fits_with("--prefetch=0", o.gathering.prefetch, std::int64_t{0}) ||
      run.fits_with("--unit=branch", o.gathering.unit, UnitKind::branch) ||
      run.fits_with("--reshard=after-forward", o.gathering.reshard, Reshard::after_forward) ||
      run.fits_with("--persist=0", o.gathering.persist, std::int64_t{0}))
    return run.enough();
  return run.least("", "Or use more ranks, or a smaller model.");
}

void report_plan(Report& report, const ZeroOffloadOptions& options, int N)
{
  report_tier_plan(report, costs(options, {0, N}).most, link_traffic(offload_plan(options, {0, N})));
  report_plan(report, static_cast<const Zero3Options&>(options), N);
}

}  // namespace rankwise
