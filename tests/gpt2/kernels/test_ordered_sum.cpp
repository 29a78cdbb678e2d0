#include <cmath>
#include <vector>

#include "common/base/tree_sum.hpp"
#include "gpt2/kernels/ordered_sum.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/testing.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// Numbers of very different size, so that another order has other bits.
float term(std::int64_t i)
{
  return static_cast<float>(number(i, 1) * std::pow(10.0, static_cast<double>(i % 5) - 2));
}

}  // namespace

TEST_CASE("stacked_sum: visits the leaves in order and has the bits of tree_sum, for every count")
{
  for (std::int64_t count = 1; count <= 300; ++count) {
    std::vector<std::int64_t> visited;
    const float sum = stacked_sum(count, [&](std::int64_t i) {
      visited.push_back(i);
      return term(i);
    });
    INFO(count << " leaves");
    CHECK(sum == tree_sum(0, count, term));
    REQUIRE(visited.size() == static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) CHECK(visited[static_cast<std::size_t>(i)] == i);
  }
  constexpr std::int64_t many = 3'000'001;
  CHECK(stacked_sum(many, term) == tree_sum(0, many, term));
}

TEST_CASE("ordered_sum: adds the terms of each leaf one by one, and the leaves as a tree")
{
  for (const SumOrder& order : {SumOrder::sequential(37), SumOrder::split(48, 8), SumOrder::split(144, 4, 3),
                                SumOrder::split(5, 8), SumOrder::batch(3, 13), SumOrder::sequences(6)}) {
    const float expected = tree_sum(0, order.leaves(), [&](std::int64_t leaf) {
      float sum = 0;
      for (std::int64_t run = 0; run < order.runs(); ++run)
        for (std::int64_t i = order.run(leaf, run).first; i < order.run(leaf, run).end(); ++i) sum += term(i);
      return sum;
    });
    CHECK(ordered_sum(order, term) == expected);
  }
}
