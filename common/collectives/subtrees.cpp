#include "common/collectives/subtrees.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "common/base/tree_sum.hpp"
#include "common/collectives/pairwise.hpp"
#include "common/memory/element_sum.hpp"

namespace rankwise {

bool DealtLeaves::are_balanced() const
{
  const auto leaves = static_cast<std::uint64_t>(deal_.elements()), N = static_cast<std::uint64_t>(deal_.shards());
  return leaves == 0 || (std::has_single_bit(N) && std::has_single_bit(leaves) && leaves >= N);
}

std::vector<Range> DealtLeaves::runs_of(std::int64_t rank) const
{
  return aligned_runs(deal_.shard(rank));
}

void subtree_reduce_scatter_sum(const PartialSum& sum, const DealtLeaves& leaves, Group& group)
{
  const Tensor& first = sum.subtrees.front();
  check_summable(first.type());
  Stream& stream = group.transport().stream();
  const int N = group.ranks();
  const Partition shards(first.elements(), N);
  const Range own = shards.shard(group.rank());

  // Runs of all ranks, in the order of the leaves: shard r of each subtree arrives in a place of its own.
  std::vector<Range> runs;
  std::vector<std::size_t> first_run;  // by rank
  std::size_t rounds = 0;
  for (int q = 0; q < N; ++q) {
    const std::vector<Range> of_rank = leaves.runs_of(q);
    first_run.push_back(runs.size());
    runs.insert(runs.end(), of_rank.begin(), of_rank.end());
    rounds = std::max(rounds, of_rank.size());
  }
  first_run.push_back(runs.size());
  check(sum.subtrees.size() == leaves.runs_of(group.rank()).size(), "a rank has not summed all of its leaves");
  const Tensor arrived = group.scratch(first.type(), std::ssize(runs) * own.count);
  const auto place = [&](std::size_t run) { return Range{static_cast<std::int64_t>(run) * own.count, own.count}; };

  // In round k the k-th subtree of each rank travels; ranks that have fewer send nothing.
  for (std::size_t k = 0; k < rounds; ++k) {
    const bool sends = k < sum.subtrees.size();
    Blocks to, from;
    for (int q = 0; q < N; ++q) {
      const std::size_t run = first_run[static_cast<std::size_t>(q)] + k;
      to.push_back(sends ? shards.shard(q) : Range{});
      from.push_back(run < first_run[static_cast<std::size_t>(q) + 1] ? place(run) : Range{});
    }
    pairwise_all_to_all(sends ? sum.subtrees[k] : first, to, arrived, from, group);
  }
  tree_over_runs(
      runs, [&](std::size_t i, std::size_t j) { stream.add(arrived.slice(place(i)), arrived.slice(place(j))); });
  if (!own.empty()) stream.copy(first.slice(own), arrived.slice(place(0)));
}

}  // namespace rankwise
