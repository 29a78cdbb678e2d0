#include "common/collectives/hierarchical.hpp"

#include <algorithm>

#include "common/collectives/binomial.hpp"
#include "common/collectives/ring.hpp"

namespace rankwise {

namespace {

/// Shards at both levels. The members of a node or column are in the order of their ranks.
struct LevelShares {
  std::vector<Share> inside;   // by position on the node: shard of its column
  std::vector<Share> between;  // by node: shard of this rank's column there
};

LevelShares level_shares_of(std::int64_t n, Group& group)
{
  const Partition partition(n, group.ranks());
  const Topology& topology = group.topology();
  const int places = topology.ranks_per_node();
  LevelShares levels{std::vector<Share>(static_cast<std::size_t>(places)), {}};
  for (int node = 0; node < topology.nodes; ++node) {
    const std::vector<int> ranks = topology.ranks_of(node);
    for (std::size_t place = 0; place < ranks.size(); ++place)
      levels.inside[place].push_back(partition.shard(ranks[place]));
  }
  for (const Range& shard : levels.inside[static_cast<std::size_t>(group.inside().rank())])
    levels.between.push_back({shard});
  return levels;
}

/// A rank's node, and its position there.
struct Seat {
  int node, place;
};

Seat seat_of(int rank, const Topology& topology)
{
  const int node = topology.node_of[static_cast<std::size_t>(rank)];
  const std::vector<int> ranks = topology.ranks_of(node);
  return {node, static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin())};
}

}  // namespace

void hierarchical_reduce_scatter_sum(const Tensor& values, Group& group)
{
  const LevelShares levels = level_shares_of(values.elements(), group);
  ring_reduce_scatter_sum(values, levels.inside, group.inside());
  ring_reduce_scatter_sum(values, levels.between, group.between());
}

void hierarchical_all_gather(const Tensor& values, Group& group)
{
  const LevelShares levels = level_shares_of(values.elements(), group);
  ring_all_gather(values, levels.between, group.between());
  ring_all_gather(values, levels.inside, group.inside());
}

void hierarchical_broadcast(const Tensor& values, int root, Group& group)
{
  const Seat seat = seat_of(root, group.topology());
  if (group.inside().rank() == seat.place) binomial_broadcast(values, seat.node, group.between());
  binomial_broadcast(values, seat.place, group.inside());
}

void hierarchical_reduce_sum(const Tensor& values, int root, Group& group)
{
  const Seat seat = seat_of(root, group.topology());
  binomial_reduce_sum(values, seat.place, group.inside());
  if (group.inside().rank() == seat.place) binomial_reduce_sum(values, seat.node, group.between());
}

}  // namespace rankwise
