#include "lessons/parallel/zero/zero1_costs.hpp"

#include "lessons/frame/instruments/elastic.hpp"
#include "lessons/parallel/zero/bucket_shards.hpp"
#include "lessons/parallel/zero/buckets.hpp"

namespace rankwise {

StepPlan step_plan(const Zero1Options& options)
{
  const ParameterTable table(options.config());
  return step_plan(options, table, make_buckets(table, options.gradients, options.bucket.value));
}

Costs costs(const Zero1Options& options, RankOf rank)
{
  const StepPlan plan = step_plan(options);
  const std::vector<CollectiveShape> calls = collectives_of(plan, rank.ranks);
  const Traffic sent = expected_traffic(calls, options.topology(rank.ranks), rank.rank);
  CategoryBytes bytes = unsharded_bytes(options, divide(options, rank));
  bytes[Category::optimizer] = adamw_bytes(elements_of(owned_shards(plan, rank)), options.precision);
  bytes[Category::communication] = message_bytes(options, calls, rank);
  Costs costs = costs_on_device(
      bytes, {{"world", "a step", sent,
               "(N-1)/N of the gradients and of the parameters" + describe_subtrees(options, rank)}});
  if (options.elastic) add_copies(costs, options, rank, shards_of_all(plan, rank.ranks));
  return costs;
}

}  // namespace rankwise
