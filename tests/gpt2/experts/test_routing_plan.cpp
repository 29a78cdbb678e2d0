#include <numeric>
#include <vector>

#include "gpt2/experts/routing_plan.hpp"
#include "gpt2/kernels/sum_order.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

using Numbers = std::vector<std::int64_t>;

TEST_CASE("plan_routing: rows are sorted by expert, then by token; every choice has one place")
{
  const std::vector<std::int32_t> choices{2, 0, 1, 2, 2, 0, 0, 2};  // 2 sequences of 4 tokens
  const RoutingPlan plan = plan_routing(choices, {2, 4, {.count = 3, .per_token = 1}});
  CHECK(plan.places == std::vector<std::int32_t>{4, 0, 3, 5, 6, 1, 2, 7});
  CHECK(plan.rows == Numbers{3, 1, 4});
  CHECK(plan.chosen == Numbers{1, 1, 2, 2, 0, 2});
  CHECK(std::accumulate(plan.leaves.begin(), plan.leaves.end(), std::int64_t{0}) == 8);
}

TEST_CASE("plan_routing: a full expert drops the last tokens of a sequence, whatever other sequences do")
{
  const ExpertConfig experts{.count = 2, .per_token = 1, .every = 1, .capacity_factor = 1};
  REQUIRE(experts.capacity(4) == 2);
  const std::vector<std::int32_t> choices{1, 1, 1, 0, 0, 1, 1, 1};
  const RoutingPlan both = plan_routing(choices, {2, 4, experts});
  CHECK(both.places == std::vector<std::int32_t>{2, 3, -1, 0, 1, 4, 5, -1});
  CHECK(both.rows == Numbers{2, 4});
  CHECK(both.chosen == Numbers{1, 3, 1, 3});  // dropped choices count in the auxiliary loss
  const RoutingPlan second = plan_routing(std::span(choices).subspan(4), {1, 4, experts});
  CHECK(second.places == std::vector<std::int32_t>{0, 1, 2, -1});
}

TEST_CASE("plan_routing: the leaves of an expert's rows are those of the tokens that chose it")
{
  constexpr std::int64_t T = 2 * leaves_of_a_sequence;
  std::vector<std::int32_t> choices(T);
  for (std::int64_t t = 0; t < T; ++t) choices[static_cast<std::size_t>(t)] = t % 2 == 0 || t == 3 ? 0 : 1;
  const RoutingPlan plan = plan_routing(choices, {1, T, {.count = 2, .per_token = 1}});
  for (std::int64_t leaf = 0; leaf < leaves_of_a_sequence; ++leaf) {
    CHECK(plan.leaves[static_cast<std::size_t>(leaf)] == (leaf == 1 ? 2 : 1));
    CHECK(plan.leaves[static_cast<std::size_t>(leaves_of_a_sequence + leaf)] == (leaf == 1 ? 0 : 1));
  }
}

TEST_CASE("plan_routing: with two choices a token has two rows, and each sequence has leaves of its own")
{
  const ExpertConfig experts{.count = 3, .per_token = 2, .every = 1, .capacity_factor = 0.75};
  REQUIRE(experts.capacity(4) == 2);
  const std::vector<std::int32_t> choices{0, 2, 2, 1, 2, 0, 0, 1,  // sequence 0
                                          1, 0, 0, 1, 0, 2, 1, 2};
  const RoutingPlan plan = plan_routing(choices, {2, 4, experts});
  CHECK(plan.places == std::vector<std::int32_t>{0, 8, 9, 4, -1, 1, -1, 5, 6, 2, 3, 7, -1, 10, -1, 11});
  CHECK(plan.rows == Numbers{4, 4, 4});
  CHECK(plan.chosen == Numbers{3, 2, 3, 3, 3, 2});
  // Four tokens are the first four leaves of their sequence; the others are empty.
  const std::int64_t leaves = SumOrder::batch(2, 4).leaves();
  const auto of = [&](std::int64_t expert, std::int64_t sequence) {
    const auto first = plan.leaves.begin() + expert * leaves + sequence * leaves_of_a_sequence;
    return Numbers(first, first + 4);
  };
  CHECK(of(0, 0) == Numbers{1, 0, 1, 0});
  CHECK(of(1, 0) == Numbers{0, 1, 0, 1});
  CHECK(of(2, 0) == Numbers{1, 1, 0, 0});
  CHECK(of(0, 1) == Numbers{1, 1, 0, 0});
  CHECK(of(1, 1) == Numbers{1, 1, 0, 0});
  CHECK(of(2, 1) == Numbers{0, 0, 1, 1});
}

namespace {

/// Two different experts of four for each token, experts of low numbers more often.
std::vector<std::int32_t> many_choices(std::int64_t tokens)
{
  std::vector<std::int32_t> choices;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto first = static_cast<std::int32_t>(t * t % 7 % 4);
    choices.insert(choices.end(), {first, static_cast<std::int32_t>((first + 1 + t % 3) % 4)});
  }
  return choices;
}

/// Holds the plan of tokens @p run of 3 sequences of T tokens against that of the whole sequences.
void compare_run(const RoutingPlan& whole, const std::vector<std::int32_t>& choices, const RoutingShape& shape,
                 Range run, std::int64_t leaves)
{
  const RoutingPlan plan = plan_of_run(whole, choices, shape, run, leaves);
  CHECK(plan.chosen == whole.chosen);
  REQUIRE(std::ssize(plan.places) == shape.B * run.count * 2);
  std::int32_t next = 0;
  for (std::int32_t e = 0; e < 4; ++e) {
    const std::int32_t first = next;
    Numbers by_leaf(static_cast<std::size_t>(shape.B * leaves), 0);
    for (std::int64_t b = 0; b < shape.B; ++b)
      for (std::int64_t i = 0; i < 2 * run.count; ++i) {
        const auto in_whole = static_cast<std::size_t>(2 * (b * shape.T + run.first) + i);
        if (choices[in_whole] != e) continue;
        const bool kept = whole.places[in_whole] >= 0;
        CHECK(plan.places[static_cast<std::size_t>(2 * b * run.count + i)] == (kept ? next : -1));
        next += kept ? 1 : 0;
        by_leaf[static_cast<std::size_t>(b * leaves + i / 2 * leaves / run.count)] += kept ? 1 : 0;
      }
    CHECK(plan.rows[static_cast<std::size_t>(e)] == next - first);
    const auto of_expert = plan.leaves.begin() + e * shape.B * leaves;
    CHECK(Numbers(of_expert, of_expert + shape.B * leaves) == by_leaf);
  }
}

}  // namespace

TEST_CASE("plan_of_run: runs of tokens together have the rows and leaves of whole sequences, and drop the same")
{
  constexpr std::int64_t T = 48;
  for (const double capacity : {0.0, 0.75})
    for (const int n : {1, 2, 3, 4, 8, 16}) {
      CAPTURE(capacity, n);
      const RoutingShape shape{3, T, {.count = 4, .per_token = 2, .every = 1, .capacity_factor = capacity}};
      const std::vector<std::int32_t> choices = many_choices(shape.B * T);
      const RoutingPlan whole = plan_routing(choices, shape);
      Numbers rows(4, 0), leaves(whole.leaves.size(), 0);
      for (std::int64_t run = 0; run < n; ++run) {
        const std::int64_t of_run = token_leaves_of({0, n});
        const Range tokens{run * T / n, T / n};
        compare_run(whole, choices, shape, tokens, of_run);
        const RoutingPlan plan = plan_of_run(whole, choices, shape, tokens, of_run);
        for (std::size_t e = 0; e < rows.size(); ++e) rows[e] += plan.rows[e];
        for (std::int64_t i = 0; i < std::ssize(plan.leaves); ++i)
          leaves[static_cast<std::size_t>(i / of_run * leaves_of_a_sequence + run * of_run + i % of_run)] +=
              plan.leaves[static_cast<std::size_t>(i)];
      }
      CHECK(rows == whole.rows);
      if (leaves_of_a_sequence % n == 0) CHECK(leaves == whole.leaves);  // else a run is one leaf
    }
}

TEST_CASE("auxiliary_pull: weight E f, with f the fraction of a sequence's choices")
{
  const ExpertConfig experts{.count = 2, .per_token = 1, .every = 1, .capacity_factor = 1, .auxiliary_loss = 0.5};
  const RoutingPlan plan = plan_routing(std::vector<std::int32_t>{1, 1, 1, 0}, {1, 4, experts});
  CHECK(auxiliary_pull(plan, {1, 4, experts}) == std::vector<double>{0.25, 0.75});
}
