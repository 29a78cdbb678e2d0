#include "lessons/parallel/zero/sharded_memory.hpp"

#include "gpt2/adamw.hpp"
#include "lessons/parallel/zero/bucket_gradients.hpp"
#include "lessons/parallel/zero/shard_sums.hpp"
#include "lessons/parallel/zero/step_plan.hpp"

namespace rankwise {

Costs sharded_memory(const LessonOptions& options, const Division& division, const StepPlan& plan,
                     const std::vector<GatherStep>& gathers, RankOf rank, std::int64_t messages)
{
  CategoryBytes bytes = unsharded_bytes(options, division);
  bytes[Category::gradients] = bytes[further_sums] = 0;
  bytes += ShardSums::bytes(plan, rank);
  bytes[Category::optimizer] = adamw_bytes(elements_of(owned_shards(plan, rank)), options.precision);
  bytes[Category::communication] = messages;
  bytes[Category::parameters] = kept_bytes(plan, gathers, rank);
  Costs costs = costs_on_device(bytes, {});
  in_tier(Tier::device, costs.most)[Category::gradients] += alive_bytes(plan);
  in_tier(Tier::device, costs.most)[Category::parameters] += gathered_bytes(plan, gathers);
  return costs;
}

}  // namespace rankwise
