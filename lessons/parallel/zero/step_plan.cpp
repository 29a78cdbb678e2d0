#include "lessons/parallel/zero/step_plan.hpp"

#include <bit>
#include <utility>
#include <vector>

#include "lessons/parallel/zero/bucket_shards.hpp"

namespace rankwise {

namespace {

/// The collectives in which ranks exchange the shards of one micro-batch's gradients.
std::vector<CollectiveShape> exchange_calls(const StepPlan& plan, std::int64_t ranks)
{
  const GradientLayout sums = sums_of(plan);
  std::vector<CollectiveShape> calls;
  for (const Bucket& bucket : plan.buckets) {
    CollectiveShape flat{"all-to-all-v", plan.algorithm, plan.gradients}, tied = flat;
    for (const BucketShard& shard : make_bucket_shards({bucket}, static_cast<int>(ranks))) {
      flat.counts.push_back(shard.elements.count);
      tied.counts.push_back(intersect(shard.elements, sums.tied).count);
    }
    calls.push_back(flat);
    if (!intersect(bucket.elements, sums.tied).empty()) calls.push_back(tied);
  }
  return calls;
}

/// The collectives of a step that sum all gradients, as often as it does.
std::vector<CollectiveShape> gradient_calls(const StepPlan& plan, std::int64_t ranks)
{
  std::vector<CollectiveShape> calls;
  if (adds_rank_by_rank(plan, ranks)) {
    calls = exchange_calls(plan, ranks);
  } else {
    for (const Bucket& bucket : plan.buckets)
      calls.push_back({"reduce-scatter", plan.algorithm, plan.gradients, bucket.elements.count});
    if (const GradientLayout sums = sums_of(plan); !sums.tied.empty())
      calls.push_back({"all-reduce", plan.algorithm, sums.type, sums.tied.count});
    for (CollectiveShape& call : calls) call.leaves = plan.leaves;
  }
  for (CollectiveShape& call : calls) call.times = sums_of_step(plan, ranks);
  return calls;
}

}  // namespace

StepPlan step_plan(const LessonOptions& options, const ParameterTable& table, std::vector<Bucket> buckets,
                   bool each_micro_batch)
{
  return {table,
          std::move(buckets),
          options.gradients,
          options.precision,
          Arithmetic(options.arithmetic),
          options.algorithm(),
          each_micro_batch ? options.global_batch : 0,
          each_micro_batch ? options.micro_batch : 0,
          each_micro_batch ? 0 : options.leaves()};
}

std::int64_t sums_of_step(const StepPlan& plan, std::int64_t ranks)
{
  if (plan.global_batch == 0) return 1;
  const std::int64_t B = plan.arithmetic.continues_tree()
                             ? cut_micro_batch(plan.micro_batch, plan.global_batch, ranks)
                         : plan.micro_batch == 0 ? plan.global_batch / ranks
                                                 : plan.micro_batch;
  const std::int64_t together = ranks * B;
  return (plan.global_batch + together - 1) / together;
}

bool adds_rank_by_rank(const StepPlan& plan, std::int64_t ranks)
{
  return plan.global_batch > 0 && plan.arithmetic.continues_tree() &&
         !std::has_single_bit(static_cast<std::uint64_t>(ranks));
}

std::int64_t separate_ranks(const StepPlan& plan, std::int64_t ranks)
{
  return adds_rank_by_rank(plan, ranks) ? ranks : 1;
}

GradientLayout sums_of(const StepPlan& plan)
{
  GradientLayout sums = gradient_layout(plan.table, plan.gradients);
  if (!plan.arithmetic.separates_tied()) sums.tied = {};
  return sums;
}

std::vector<Range> owned_shards(const StepPlan& plan, RankOf rank)
{
  return shards_of(rank.rank, make_bucket_shards(plan.buckets, rank.ranks));
}

std::vector<std::vector<std::int64_t>> shards_of_all(const StepPlan& plan, int ranks)
{
  std::vector<std::vector<std::int64_t>> all(static_cast<std::size_t>(ranks));
  for (const BucketShard& shard : make_bucket_shards(plan.buckets, ranks))
    all[static_cast<std::size_t>(shard.owner)].push_back(shard.elements.count);
  return all;
}

std::vector<CollectiveShape> collectives_of(const StepPlan& plan, std::int64_t ranks,
                                            const std::vector<std::int64_t>& gathers)
{
  std::vector<CollectiveShape> calls = gradient_calls(plan, ranks);
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    calls.push_back({"all-gather", plan.algorithm, plan.parameters, plan.buckets[b].elements.count});
    if (!gathers.empty()) calls.back().times = gathers[b];
  }
  return calls;
}

}  // namespace rankwise
