#include "common/collectives/hierarchical.hpp"

#include "common/collectives/binomial.hpp"

namespace rankwise {

LevelShares level_shares_of(std::int64_t n, const Topology& topology, int rank)
{
  const Partition partition(n, std::ssize(topology.node_of));
  LevelShares levels{std::vector<Share>(static_cast<std::size_t>(topology.ranks_per_node())), {}};
  for (int node = 0; node < topology.nodes; ++node) {
    const std::vector<int> ranks = topology.ranks_of(node);
    for (std::size_t place = 0; place < ranks.size(); ++place)
      levels.inside[place].push_back(partition.shard(ranks[place]));
  }
  for (const Range& shard : levels.inside[static_cast<std::size_t>(topology.place_of(rank))])
    levels.between.push_back({shard});
  return levels;
}

void hierarchical_reduce_scatter_sum(const Tensor& values, Group& group)
{
  const LevelShares levels = level_shares_of(values.elements(), group.topology(), group.rank());
  ring_reduce_scatter_sum(values, levels.inside, group.inside());
  ring_reduce_scatter_sum(values, levels.between, group.between());
}

void hierarchical_all_gather(const Tensor& values, Group& group)
{
  const LevelShares levels = level_shares_of(values.elements(), group.topology(), group.rank());
  ring_all_gather(values, levels.between, group.between());
  ring_all_gather(values, levels.inside, group.inside());
}

void hierarchical_broadcast(const Tensor& values, int root, Group& group)
{
  const int node = group.topology().node_of[static_cast<std::size_t>(root)],
            place = group.topology().place_of(root);
  if (group.inside().rank() == place) binomial_broadcast(values, node, group.between());
  binomial_broadcast(values, place, group.inside());
}

void hierarchical_reduce_sum(const Tensor& values, int root, Group& group)
{
  const int node = group.topology().node_of[static_cast<std::size_t>(root)],
            place = group.topology().place_of(root);
  binomial_reduce_sum(values, place, group.inside());
  if (group.inside().rank() == place) binomial_reduce_sum(values, node, group.between());
}

}  // namespace rankwise
