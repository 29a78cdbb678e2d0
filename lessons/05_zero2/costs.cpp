#include "lessons/05_zero2/costs.hpp"

#include "common/cuda/devices.hpp"
#include "gpt2/gradient_sum.hpp"
#include "lessons/03_ddp/buckets.hpp"
#include "lessons/03_ddp/stages.hpp"
#include "lessons/04_zero1/segments.hpp"
#include "lessons/05_zero2/bucket_gradients.hpp"
#include "lessons/05_zero2/shard_sums.hpp"

namespace rankwise {

StepPlan step_plan(const Zero2Options& options)
{
  const ParameterTable table(options.config());
  return {table,
          make_buckets(table, options.gradients, options.bucket.value),
          options.gradients,
          options.precision,
          Arithmetic(options.arithmetic).keeps_tied_apart(),
          options.algorithm(),
          options.global_batch,
          options.micro_batch};
}

Costs costs(const Zero2Options& options, RankOf rank)
{
  const ModelConfig config = options.config();
  const StepPlan plan = step_plan(options);
  const ActivationShape shape = options.activation_shape(rank);
  Costs costs;
  CategoryBytes& bytes = in_tier(Tier::device, costs.kept);
  bytes = ShardSums::bytes(Arithmetic(options.arithmetic), plan, rank);
  bytes[Category::parameters] = bytes_of(options.precision) * plan.table.elements();
  bytes[Category::optimizer] = adamw_bytes(elements_of(owned_segments(plan, rank)), options.precision);
  bytes[Category::activations] = activation_bytes(config, shape);
  bytes[Category::workspace] = workspace_bytes(config, shape) + kernel_bytes(options.device);
  bytes[Category::communication] =
      message_bytes(plan, options.topology(rank.ranks), rank.rank) + host_values_bytes(options.device, rank.ranks);
  costs.most = costs.kept;
  in_tier(Tier::device, costs.most)[Category::gradients] += alive_bytes(plan);

  const Traffic sent = step_traffic(plan, options.topology(rank.ranks), rank.rank);
  costs.sent = {{"world", "a step", sent, "(N-1)/N of M times the gradients and of the parameters"}};
  return costs;
}

std::string suggest_options(const Zero2Options& options, int N, std::int64_t bytes)
{
  const RankOf rank{0, N};
  return what_fits(Stage::zero2, options, options.messages, options.bucket.value, rank,
                   in_tier(Tier::device, costs(options, rank).most), bytes);
}

}  // namespace rankwise
