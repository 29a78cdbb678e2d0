#include "lessons/03_ddp/sum_plan.hpp"

#include <vector>

#include "common/collectives/cost.hpp"
#include "gpt2/gradient_sum.hpp"
#include "lessons/03_ddp/buckets.hpp"
#include "lessons/03_ddp/replicas.hpp"

namespace rankwise {

namespace {

/// The all-reduces of one step's gradients.
std::vector<CollectiveShape> gradient_sums(const SumPlan& plan)
{
  const ParameterTable table(plan.config);
  std::vector<CollectiveShape> sums;
  const auto add = [&](std::int64_t n) { sums.push_back({"all-reduce", plan.algorithm, plan.gradients, n}); };
  if (plan.strategy == Strategy::per_tensor)
    for (const Parameter& p : table.entries()) add(p.elements.count);
  else if (plan.strategy == Strategy::flat)
    add(table.elements());
  else
    for (const Bucket& bucket : make_buckets(table, plan.gradients, plan.bucket_bytes)) add(bucket.elements.count);
  if (plan.tied_apart) add(gradient_layout(table, plan.gradients).tied.count);
  return sums;
}

}  // namespace

Traffic step_traffic(const SumPlan& plan, const Topology& topology, int rank)
{
  Traffic sum;
  for (const CollectiveShape& call : gradient_sums(plan)) sum += expected_traffic(call, topology, rank);
  return sum;
}

std::int64_t scratch_of_run(const SumPlan& plan, const Topology& topology, int rank)
{
  const auto ranks = static_cast<std::int64_t>(topology.node_of.size());
  std::vector<CollectiveShape> calls = gradient_sums(plan);
  calls.push_back({"broadcast", plan.algorithm, DType::f32, ParameterTable(plan.config).elements()});
  calls.push_back({"all-reduce", plan.algorithm, DType::i64, loss_numbers});
  calls.push_back({"all-gather", plan.algorithm, DType::i64, ranks});
  return scratch_bytes(calls, topology, rank);
}

}  // namespace rankwise
