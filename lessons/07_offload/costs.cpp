#include "lessons/07_offload/costs.hpp"

#include "gpt2/adamw.hpp"
#include "gpt2/smaller_run.hpp"
#include "lessons/04_zero1/bucket_shards.hpp"
#include "lessons/05_zero2/bucket_gradients.hpp"
#include "lessons/05_zero2/shard_sums.hpp"
#include "lessons/07_offload/offload_report.hpp"

namespace rankwise {

OffloadPlan offload_plan(const ZeroOffloadOptions& options, RankOf rank)
{
  return {options.offload, step_plan(options), gathers(options), rank, options.clip > 0};
}

Costs costs(const ZeroOffloadOptions& options, RankOf rank)
{
  const StepPlan plan = step_plan(options);
  const Traffic sent = step_traffic(plan, gathers(options), options.topology(rank.ranks), rank.rank);
  const CategoryBytes all = unsharded_bytes(options, options.activation_shape(rank), options.share(rank.ranks));
  const OffloadPlan offload = offload_plan(options, rank);
  const auto on_device = [&](Category category) { return offload.tier_of(category) == Tier::device; };
  Costs costs;
  costs.kept = tier_bytes(offload);
  CategoryBytes& bytes = in_tier(Tier::device, costs.kept);
  if (on_device(Category::gradients)) bytes += ShardSums::bytes(Arithmetic(options.arithmetic), plan, rank);
  if (on_device(Category::optimizer))
    bytes[Category::optimizer] = adamw_bytes(offload.blocks.elements(), plan.parameters);
  bytes[Category::parameters] = on_device(Category::parameters)
                                    ? kept_bytes(plan, rank)
                                    : bytes_of(plan.parameters) * plan.table.replicated().count;
  bytes[Category::activations] = all[Category::activations];
  bytes[Category::workspace] = all[Category::workspace];
  bytes[Category::communication] = message_bytes(options, collectives_of(plan), rank);
  costs.most = costs.kept;
  in_tier(Tier::device, costs.most)[Category::gradients] += alive_bytes(plan);
  in_tier(Tier::device, costs.most)[Category::parameters] += gathered_bytes(plan, gathers(options));
  costs.sent = {{"world", "a step", sent, "(N-1)/N of all that is gathered and of M times the gradients"}};
  return costs;
}

std::string suggest_options(const ZeroOffloadOptions& options, int N, std::int64_t bytes)
{
  ZeroOffloadOptions o = options;
  SmallerRun run([&] { return in_tier(Tier::device, costs(o, {0, N}).most).total(); }, bytes);
  if (run.fits_with("--offload=all", o.offload.what, Offload::all) ||
      run.fits_with("--recompute=block", o.recompute_blocks, true) ||
      (o.gradients == DType::f32 && run.fits_with("--micro-batch=1", o.micro_batch, std::int64_t{1})) ||
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
