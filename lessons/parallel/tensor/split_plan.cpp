#include "lessons/parallel/tensor/split_plan.hpp"

#include <fmt/format.h>

#include "common/collectives/collectives.hpp"
#include "lessons/frame/replicas.hpp"
#include "lessons/parallel/tensor/row_gradients.hpp"

namespace rankwise {

namespace {

/// A step's collectives among tensor-parallel ranks.
std::vector<CollectiveShape> tensor_parallel_calls(const SplitPlan& plan)
{
  const ActivationShape& shape = plan.shape;
  const std::int64_t R = shape.rows(), t = shape.part.count, branches = 2 * shape.blocks(plan.config);
  const bool divides_rows = shape.tokens.count > 1;
  std::vector<CollectiveShape> calls;
  const auto add = [&](std::string_view name, DType type, std::int64_t n, std::int64_t times) {
    calls.push_back({name, plan.algorithm, type, n});
    calls.back().times = plan.micro_batches * times;
  };
  // A whole model has embedding and head; a pipeline stage may have neither. Recomputation runs each branch's
  // forward pass once more.
  const std::int64_t embedding = shape.has_embedding(), head = shape.has_head(plan.config);
  const std::int64_t runs = shape.recompute ? 2 : 1;
  // BEGIN EXERCISE 08.3
  const std::int64_t forward = runs * branches;                     // forward passes of branches
  const std::int64_t sums = embedding + forward + branches + head;  // embedding, branches twice, head backward
  if (divides_rows) {
    const std::int64_t again = shape.regather ? branches + head : 0;
    add("reduce-scatter", shape.type, R * plan.config.channels, sums);
    add("all-gather", shape.type, R * plan.config.channels, forward + head + branches + embedding + again);
    for (const std::int64_t numbers : plan.row_sums()) add("all-reduce", DType::f32, numbers, 1);
  } else {
    add("all-reduce", shape.type, R * plan.config.channels, sums);
  }
  const DType number = accumulator_of(shape.type);
  if (t > 1) add("all-gather", number, t * R, head);
  add("all-reduce", number, R, 2 * head);
  // END EXERCISE
  return calls;
}

}  // namespace

std::vector<std::int64_t> SplitPlan::row_sums() const
{
  if (!of_row_sums.empty()) return of_row_sums;
  return {RowGradients::elements(ParameterTable(config, shape.part, shape.units), shape)};
}

Traffic tensor_parallel_traffic(const SplitPlan& plan, const Topology& topology, int rank)
{
  return expected_traffic(tensor_parallel_calls(plan), topology, rank);
}

std::vector<CollectiveShape> tensor_parallel_collectives(const SplitPlan& plan)
{
  std::vector<CollectiveShape> calls = tensor_parallel_calls(plan);
  calls.push_back({"all-reduce", plan.algorithm, DType::i64, square_numbers});  // of the norm
  return calls;
}

void reserve_tensor_parallel_scratch(const SplitPlan& plan, Group& parts)
{
  for (const CollectiveShape& call : tensor_parallel_calls(plan)) reserve_scratch(call, parts);
}

std::string describe_tensor_parallel_traffic(const ActivationShape& shape)
{
  const std::int64_t layer = shape.tokens.count == 1 ? 8 : shape.regather ? 10 : 8;
  const std::int64_t again = shape.recompute ? 4 : 0;
  return fmt::format("{} (t-1)/t B T C elements a layer and micro-batch, embedding, head, three numbers a token",
                     layer + again);
}

}  // namespace rankwise
