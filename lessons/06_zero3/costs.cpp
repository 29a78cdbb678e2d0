#include "lessons/06_zero3/costs.hpp"

#include "common/cuda/devices.hpp"
#include "gpt2/gradient_sum.hpp"
#include "lessons/03_ddp/stages.hpp"
#include "lessons/04_zero1/segments.hpp"
#include "lessons/05_zero2/bucket_gradients.hpp"
#include "lessons/05_zero2/shard_sums.hpp"

namespace rankwise {

StepPlan step_plan(const Zero3Options& options)
{
  const ParameterTable table(options.config(), {}, {0, -1}, options.gathering.persist);
  return {table,
          make_units(table, options.gathering.unit),
          options.gradients,
          options.precision,
          Arithmetic(options.arithmetic).keeps_tied_apart(),
          options.algorithm(),
          options.global_batch,
          options.micro_batch};
}

std::vector<GatherStep> gathers(const Zero3Options& options)
{
  return plan_gathers(step_plan(options).buckets, options.uses(true), options.gathering);
}

Costs costs(const Zero3Options& options, RankOf rank)
{
  const ModelConfig config = options.config();
  const StepPlan plan = step_plan(options);
  const ActivationShape shape = options.activation_shape(rank);
  Costs costs;
  CategoryBytes& bytes = in_tier(Tier::device, costs.kept);
  bytes = ShardSums::bytes(Arithmetic(options.arithmetic), plan, rank);
  bytes[Category::parameters] = kept_bytes(plan, rank);
  bytes[Category::optimizer] = adamw_bytes(elements_of(owned_segments(plan, rank)), options.precision);
  bytes[Category::activations] = activation_bytes(config, shape);
  bytes[Category::workspace] = workspace_bytes(config, shape) + kernel_bytes(options.device);
  bytes[Category::communication] =
      message_bytes(plan, options.topology(rank.ranks), rank.rank) + host_values_bytes(options.device, rank.ranks);
  costs.most = costs.kept;
  in_tier(Tier::device, costs.most)[Category::gradients] += alive_bytes(plan);
  in_tier(Tier::device, costs.most)[Category::parameters] += gathered_bytes(plan, gathers(options));

  const Traffic sent = step_traffic(plan, gathers(options), options.topology(rank.ranks), rank.rank);
  costs.sent = {{"world", "a step", sent, "(N-1)/N of all that is gathered and of M times the gradients"}};
  return costs;
}

std::string suggest_options(const Zero3Options& options, int N, std::int64_t bytes)
{
  const RankOf rank{0, N};
  return what_fits(Stage::zero3, options, options.messages, 0, rank,
                   in_tier(Tier::device, costs(options, rank).most), bytes);
}

void report_plan(Report& report, const Zero3Options& options, int)
{
  report.comment(describe_units(step_plan(options), gathers(options)));
}

}  // namespace rankwise
