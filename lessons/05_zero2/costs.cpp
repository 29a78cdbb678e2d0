#include "lessons/05_zero2/costs.hpp"

#include "gpt2/gradient_sum.hpp"
#include "lessons/parallel/zero/bucket_gradients.hpp"
#include "lessons/parallel/zero/bucket_shards.hpp"
#include "lessons/parallel/zero/buckets.hpp"
#include "lessons/parallel/zero/shard_sums.hpp"

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
  Costs costs;
  CategoryBytes& bytes = in_tier(Tier::device, costs.kept);
  bytes = unsharded_bytes(options, divide(options, rank));
  bytes[Category::gradients] = bytes[further_sums] = 0;
  bytes += ShardSums::bytes(Arithmetic(options.arithmetic), plan, rank);
  bytes[Category::optimizer] = adamw_bytes(elements_of(owned_shards(plan, rank)), options.precision);
  bytes[Category::communication] = message_bytes(options, calls, rank);
  costs.most = costs.kept;
  in_tier(Tier::device, costs.most)[Category::gradients] += alive_bytes(plan);
  costs.sent = {{"world", "a step", sent, "(N-1)/N of M times the gradients and of the parameters"}};
  return costs;
}

}  // namespace rankwise
