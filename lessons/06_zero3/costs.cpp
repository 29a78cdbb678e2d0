#include "lessons/06_zero3/costs.hpp"

#include "gpt2/gradient_sum.hpp"
#include "lessons/04_zero1/bucket_shards.hpp"
#include "lessons/05_zero2/bucket_gradients.hpp"
#include "lessons/05_zero2/shard_sums.hpp"

namespace rankwise {

StepPlan step_plan(const Zero3Options& options)
{
  const ParameterTable table(options.config(), {}, {0, -1}, options.gathering.persist);
  return step_plan(options, table, make_fsdp_units(table, options.gathering.unit), true);
}

std::vector<GatherStep> gathers(const Zero3Options& options)
{
  return plan_gathers(step_plan(options).buckets, uses_of(options, true), options.gathering);
}

Costs sharded_memory(const LessonOptions& options, const ActivationShape& shape, const StepPlan& plan,
                     const std::vector<GatherStep>& gathers, RankOf rank)
{
  Costs costs;
  CategoryBytes& bytes = in_tier(Tier::device, costs.kept);
  bytes = unsharded_bytes(options, shape, shape.B);
  bytes[Category::gradients] = bytes[further_sums] = 0;
  bytes += ShardSums::bytes(Arithmetic(options.arithmetic), plan, rank);
  bytes[Category::optimizer] = adamw_bytes(elements_of(owned_shards(plan, rank)), options.precision);
  bytes[Category::parameters] = kept_bytes(plan, gathers, rank);
  costs.most = costs.kept;
  in_tier(Tier::device, costs.most)[Category::gradients] += alive_bytes(plan);
  in_tier(Tier::device, costs.most)[Category::parameters] += gathered_bytes(plan, gathers);
  return costs;
}

Costs costs(const Zero3Options& options, RankOf rank)
{
  const StepPlan plan = step_plan(options);
  const Traffic sent = step_traffic(plan, gathers(options), options.topology(rank.ranks), rank.rank);
  Costs costs = sharded_memory(options, options.activation_shape(rank), plan, gathers(options), rank);
  for (TierBytes* bytes : {&costs.kept, &costs.most})
    in_tier(Tier::device, *bytes)[Category::communication] = message_bytes(options, collectives_of(plan), rank);
  costs.sent = {{"world", "a step", sent, "(N-1)/N of all that is gathered and of M times the gradients"}};
  return costs;
}

void report_plan(Report& report, const Zero3Options& options, int)
{
  report.comment(describe_units(step_plan(options), gathers(options)));
}

}  // namespace rankwise
