// Sums over any number of ranks and of leaves: the bits of one tree, and traffic and scratch of the formulas.

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "common/base/tree_sum.hpp"
#include "common/collectives/collectives.hpp"
#include "common/collectives/cost.hpp"
#include "common/collectives/subtrees.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"

using namespace rankwise;

namespace {

/// Leaf @p leaf of element @p i; sizes differ so much that every order of summation has bits of its own.
float leaf_at(std::int64_t leaf, std::int64_t i)
{
  const auto x = static_cast<double>(leaf * 7919 + i * 104729);
  return static_cast<float>(std::sin(x) * std::pow(10.0, 4 * std::cos(3 * x)));
}

float sum_of(Range leaves, std::int64_t i)
{
  return tree_sum(leaves.first, leaves.count, [&](std::int64_t leaf) { return leaf_at(leaf, i); });
}

/// A rank's sums over its runs of leaves, of n elements each.
struct Contribution {
  Contribution(std::int64_t leaves, std::int64_t n, int rank, int ranks)
  {
    for (const Range run : aligned_runs(Partition(leaves, ranks).shard(rank))) {
      std::vector<float>& values = memory.emplace_back(static_cast<std::size_t>(n));
      for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = sum_of(run, i);
    }
    for (std::vector<float>& values : memory) sum.subtrees.emplace_back(std::span<float>(values), Shape{n});
  }
  std::vector<std::vector<float>> memory;
  PartialSum sum;
};

}  // namespace

TEST_CASE("DealtLeaves: balanced if ranks and leaves of a rank are powers of two, or if sums have no order")
{
  for (int N = 1; N <= 9; ++N)
    for (std::int64_t leaves = N; leaves <= 40; ++leaves) {
      const bool powers =
          std::has_single_bit(static_cast<unsigned>(N)) && std::has_single_bit(static_cast<std::uint64_t>(leaves));
      REQUIRE(DealtLeaves(leaves, N).are_balanced() == powers);
      REQUIRE(DealtLeaves(0, N).are_balanced());
    }
}

TEST_CASE("sums of subtrees: the bits of tree_sum() over all leaves, by the formulas' bytes, messages and scratch")
{
  const int N = world().ranks(), r = world().rank();
  for (const std::int64_t leaves : {N, N + 1, 2 * N, 2 * N + 1, 3 * N, 16, 23})
    for (const std::int64_t n : {1, 2, 7, 1000})
      for (const char* collective : {"reduce-scatter", "all-reduce"}) {
        if (leaves < N) continue;
        INFO(collective << " of " << n << " elements, " << leaves << " leaves");
        GroupForTest with(Algorithm::halving, 0, false, leaves);
        Contribution own(leaves, n, r, N);
        Range finished{0, n};
        if (collective == std::string("all-reduce"))
          all_reduce_sum(own.sum, with.group);
        else
          finished = reduce_scatter_sum(own.sum, with.group);
        std::int64_t wrong = 0;
        for (std::int64_t i = finished.first; i < finished.end(); ++i)
          wrong += own.memory[0][static_cast<std::size_t>(i)] != sum_of({0, leaves}, i);
        REQUIRE(wrong == 0);

        CollectiveShape call{collective, Algorithm::halving, DType::f32, n};
        call.leaves = leaves;
        const Topology& topology = with.group.topology();
        const Traffic sent = with.traffic.total(), formula = expected_traffic(call, topology, r);
        REQUIRE(sent.bytes == formula.bytes);
        REQUIRE(sent.messages == formula.messages);
        REQUIRE(with.ledger.peak(Tier::device)[Category::communication] == scratch_bytes({call}, topology, r));
      }
}

TEST_CASE("sums of subtrees: a rank that has not summed all of its leaves is refused")
{
  const int N = world().ranks();
  if (N != 1) return;
  GroupForTest with(Algorithm::halving, 0, false, 7);
  Contribution own(6, 10, 0, 1);
  CHECK_THROWS_AS(all_reduce_sum(own.sum, with.group), Error);
}
