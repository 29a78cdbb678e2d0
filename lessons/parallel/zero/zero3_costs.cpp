#include "lessons/parallel/zero/zero3_costs.hpp"

#include "lessons/frame/instruments/elastic.hpp"
#include "lessons/parallel/zero/sharded_memory.hpp"

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

Costs costs(const Zero3Options& options, RankOf rank)
{
  const StepPlan plan = step_plan(options);
  const std::vector<CollectiveShape> calls = collectives_of(plan, gathers(options), rank.ranks);
  const Traffic sent = expected_traffic(calls, options.topology(rank.ranks), rank.rank);
  const std::int64_t messages = message_bytes(options, calls, rank);
  Costs costs = sharded_memory(options, divide(options, rank), plan, gathers(options), rank, messages);
  costs.sent = {{"world", "a step", sent, "(N-1)/N of all that is gathered and of M times the gradients"}};
  if (options.elastic) add_copies(costs, options, rank, shards_of_all(plan, rank.ranks));
  return costs;
}

void report_plan(Report& report, const Zero3Options& options, int)
{
  report.comment(describe_units(step_plan(options), gathers(options)));
}

}  // namespace rankwise
