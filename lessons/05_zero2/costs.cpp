#include "lessons/05_zero2/costs.hpp"

#include "lessons/parallel/zero/buckets.hpp"
#include "lessons/parallel/zero/sharded_memory.hpp"

namespace rankwise {

StepPlan step_plan(const Zero2Options& options)
{
  const ParameterTable table(options.config());
  return step_plan(options, table, make_buckets(table, options.gradients, options.bucket.value), true);
}

Costs costs(const Zero2Options& options, RankOf rank)
{
  const StepPlan plan = step_plan(options);
  const std::vector<CollectiveShape> calls = collectives_of(plan, rank.ranks);
  const Traffic sent = expected_traffic(calls, options.topology(rank.ranks), rank.rank);
  // All parameters stay whole: no micro-batch gathers any.
  Costs costs = sharded_memory(options, divide(options, rank), plan, {}, rank, message_bytes(options, calls, rank));
  costs.sent = {{"world", "a step", sent, "(N-1)/N of M times the gradients and of the parameters"}};
  return costs;
}

}  // namespace rankwise
