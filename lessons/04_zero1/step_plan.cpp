#include "lessons/04_zero1/step_plan.hpp"

#include <algorithm>
#include <vector>

#include "common/collectives/cost.hpp"
#include "lessons/03_ddp/buckets.hpp"
#include "lessons/03_ddp/replicas.hpp"
#include "lessons/04_zero1/segments.hpp"

namespace rankwise {

namespace {

std::vector<Bucket> buckets_of(const StepPlan& plan)
{
  return make_buckets(ParameterTable(plan.config), plan.gradients, plan.bucket_bytes);
}

/// The collectives that carry all gradients once.
std::vector<CollectiveShape> gradient_calls(const StepPlan& plan)
{
  std::vector<CollectiveShape> calls;
  for (const Bucket& bucket : buckets_of(plan))
    calls.push_back({"reduce-scatter", plan.algorithm, plan.gradients, bucket.elements.count});
  if (const GradientLayout sums = sums_of(plan); !sums.tied.empty())
    calls.push_back({"all-reduce", plan.algorithm, sums.type, sums.tied.count});
  return calls;
}

/// The collectives that carry all parameters once.
std::vector<CollectiveShape> parameter_calls(const StepPlan& plan)
{
  std::vector<CollectiveShape> calls;
  for (const Bucket& bucket : buckets_of(plan))
    calls.push_back({"all-gather", plan.algorithm, plan.parameters, bucket.elements.count});
  return calls;
}

}  // namespace

std::int64_t sums_of_step(const StepPlan& plan, std::int64_t ranks)
{
  return plan.micro_batch == 0 ? 1 : plan.global_batch / (ranks * plan.micro_batch);
}

GradientLayout sums_of(const StepPlan& plan)
{
  GradientLayout sums = gradient_layout(ParameterTable(plan.config), plan.gradients);
  if (!plan.tied_apart) sums.tied = {};
  return sums;
}

std::vector<Range> owned_segments(const StepPlan& plan, const Session& session)
{
  return segments_of(session.rank(), make_segments(buckets_of(plan), session.ranks()));
}

Traffic step_traffic(const StepPlan& plan, const Topology& topology, int rank)
{
  Traffic sum;
  const auto ranks = static_cast<std::int64_t>(topology.node_of.size());
  for (std::int64_t pass = 0; pass < sums_of_step(plan, ranks); ++pass)
    for (const CollectiveShape& call : gradient_calls(plan)) sum += expected_traffic(call, topology, rank);
  for (const CollectiveShape& call : parameter_calls(plan)) sum += expected_traffic(call, topology, rank);
  return sum;
}

std::int64_t message_bytes(const StepPlan& plan, const Topology& topology, int rank)
{
  const auto ranks = static_cast<int>(topology.node_of.size());
  std::vector<CollectiveShape> calls = gradient_calls(plan);
  for (const CollectiveShape& call : parameter_calls(plan)) calls.push_back(call);
  calls.push_back({"all-reduce", plan.algorithm, DType::i64, loss_numbers});
  calls.push_back({"all-gather", plan.algorithm, DType::i64, ranks});
  std::int64_t most = 0;
  for (const CollectiveShape& call : calls) most = std::max(most, scratch_bytes(call, topology, rank));
  return most + bytes_of(DType::f32) * block_elements(make_segments(buckets_of(plan), ranks));
}

}  // namespace rankwise
