#include "gpt2/experts/routing_plan.hpp"

#include "gpt2/kernels/sum_order.hpp"

namespace rankwise {

namespace {

/// Number of the leaf, of all those of a sum over the rows, to which each row belongs.
std::vector<std::int64_t> leaves_of_rows(const SumOrder& order)
{
  std::vector<std::int64_t> leaf_of_row(static_cast<std::size_t>(order.terms()));
  for (std::int64_t leaf = 0; leaf < order.leaves(); ++leaf) {
    const Range rows = order.run(leaf, 0);
    for (std::int64_t r = rows.first; r < rows.end(); ++r) leaf_of_row[static_cast<std::size_t>(r)] = leaf;
  }
  return leaf_of_row;
}

}  // namespace

RoutingPlan plan_routing(std::span<const std::int32_t> choices, const RoutingShape& shape)
{
  // BEGIN EXERCISE 15.1
  const std::int64_t E = shape.experts.count, k = shape.experts.per_token,
                     capacity = shape.experts.capacity(shape.T);
  const auto leaves = SumOrder::batch(shape.B, shape.T).leaves();
  const std::vector<std::int64_t> leaf_of_row = leaves_of_rows(SumOrder::batch(shape.B, shape.T));
  RoutingPlan plan;
  plan.places.assign(choices.size(), -1);
  plan.leaves.assign(static_cast<std::size_t>(E * leaves), 0);
  plan.chosen.assign(static_cast<std::size_t>(shape.B * E), 0);
  plan.rows.assign(static_cast<std::size_t>(E), 0);
  // First pass: an expert takes the first choices of each sequence, and counts them.
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const std::int64_t row = static_cast<std::int64_t>(i) / k, expert = choices[i];
    std::int64_t& chosen = plan.chosen[static_cast<std::size_t>(row / shape.T * E + expert)];
    if (chosen++ >= capacity) continue;
    const std::int64_t leaf = leaf_of_row[static_cast<std::size_t>(row)];
    ++plan.leaves[static_cast<std::size_t>(expert * leaves + leaf)];
    plan.places[i] = static_cast<std::int32_t>(plan.rows[static_cast<std::size_t>(expert)]++);
  }
  // Second pass: the rows of an expert follow those of the experts before it.
  std::vector<std::int64_t> first(static_cast<std::size_t>(E), 0);
  for (std::size_t e = 1; e < first.size(); ++e) first[e] = first[e - 1] + plan.rows[e - 1];
  for (std::size_t i = 0; i < choices.size(); ++i)
    if (plan.places[i] >= 0)
      plan.places[i] += static_cast<std::int32_t>(first[static_cast<std::size_t>(choices[i])]);
  return plan;
  // END EXERCISE
}

RoutingPlan plan_of_run(const RoutingPlan& whole, std::span<const std::int32_t> choices, const RoutingShape& shape,
                        Range run, std::int64_t leaves)
{
  // BEGIN EXERCISE 16.3
  const SumOrder order = SumOrder::batch(shape.B, run.count, leaves);
  const std::vector<std::int64_t> leaf_of_row = leaves_of_rows(order);
  const std::int64_t k = shape.experts.per_token;
  const auto experts = static_cast<std::size_t>(shape.experts.count);
  RoutingPlan plan;
  plan.places.assign(static_cast<std::size_t>(order.terms() * k), -1);
  plan.leaves.assign(experts * static_cast<std::size_t>(order.leaves()), 0);
  plan.chosen = whole.chosen;
  // Rows are sorted by expert, so each expert looks for its choices after the experts before it.
  std::int32_t place = 0;
  for (std::size_t e = 0; e < experts; ++e) {
    const std::int32_t first = place;
    for (std::size_t i = 0; i < plan.places.size(); ++i) {
      const std::int64_t row = static_cast<std::int64_t>(i) / k, choice = static_cast<std::int64_t>(i) % k;
      const std::int64_t row_of_whole = row / run.count * shape.T + run.first + row % run.count;
      const auto in_whole = static_cast<std::size_t>(row_of_whole * k + choice);
      if (choices[in_whole] != static_cast<std::int32_t>(e) || whole.places[in_whole] < 0) continue;
      plan.places[i] = place++;
      ++plan.leaves[e * static_cast<std::size_t>(order.leaves()) +
                    static_cast<std::size_t>(leaf_of_row[static_cast<std::size_t>(row)])];
    }
    plan.rows.push_back(place - first);
  }
  return plan;
  // END EXERCISE
}

std::vector<double> auxiliary_pull(const RoutingPlan& plan, const RoutingShape& shape)
{
  const auto choices = static_cast<double>(shape.experts.per_token * shape.T);
  std::vector<double> pull;
  for (const std::int64_t chosen : plan.chosen)
    pull.push_back(shape.experts.auxiliary_loss * static_cast<double>(shape.experts.count) *
                   static_cast<double>(chosen) / choices);
  return pull;
}

}  // namespace rankwise
