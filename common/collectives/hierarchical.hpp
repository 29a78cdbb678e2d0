#pragma once

#include "common/collectives/ring.hpp"
#include "common/messages/group.hpp"

/// @file
/// Collectives in two levels: links inside a node are fast and links between nodes slow, so as few bytes as
/// possible are sent between nodes.
///
/// Every node has the same number of ranks. The ranks with the same position on their nodes form a column. A column
/// is responsible for the shards of all its ranks.
///
/// 2 nodes of 2 ranks         inside (ring)                 between (ring)
/// node 0   rank 0, pos. 0    sums the shards 0 and 2       exchanges with rank 2, keeps 0
///          rank 1, pos. 1    sums the shards 1 and 3       exchanges with rank 3, keeps 1
/// node 1   rank 2, pos. 0    sums the shards 0 and 2       exchanges with rank 0, keeps 2
///          rank 3, pos. 1    sums the shards 1 and 3       exchanges with rank 1, keeps 3

namespace rankwise {

/// The shards at both levels. The members of a node or column are in the order of their ranks.
struct LevelShares {
  std::vector<Share> inside;   ///< by position on the node: shard of its column
  std::vector<Share> between;  ///< by node: shard of the rank's column there
};

/// The shards of a rank of a group.
/// @param n         number of elements of the vector.
/// @param topology  nodes of the group's ranks, all of the same size.
LevelShares level_shares_of(std::int64_t n, const Topology& topology, int rank);

/// Leaves on each rank the finished sum of shard r: a ring inside each node, then one in each column.
/// @param values  (n) any type that can be added, the same n on all ranks.
/// @param group   N = S L ranks on S nodes of L ranks; all of them make this call.
/// @cost     sends n (L-1)/L elements per rank inside nodes, and (n/L) (S-1)/S between nodes; scratch of four
///           messages for each level.
/// @source   two-level collectives as in NCCL's and Horovod's hierarchical all-reduce: Sergeev and Del Balso 2018,
///           arXiv:1802.05799.
void hierarchical_reduce_scatter_sum(const Tensor& values, Group& group);

/// Copies shard q from rank q to all ranks: a ring in each column, then one inside each node.
/// @cost     as for hierarchical_reduce_scatter_sum(), without scratch.
void hierarchical_all_gather(const Tensor& values, Group& group);

/// Copies the root's @p values to all ranks: by a binomial tree in the root's column, then by one inside each node.
/// @cost     each node receives the n elements from another node once.
/// @source   as for hierarchical_reduce_scatter_sum().
void hierarchical_broadcast(const Tensor& values, int root, Group& group);

/// Leaves the sum of @p values on the root: to the root's column inside each node, then to the root.
/// @cost     each node sends n elements to another node once; scratch of n elements for each level.
/// @source   as for hierarchical_reduce_scatter_sum().
void hierarchical_reduce_sum(const Tensor& values, int root, Group& group);

}  // namespace rankwise
