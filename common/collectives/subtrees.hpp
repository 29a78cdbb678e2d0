#pragma once

#include <cstdint>
#include <vector>

#include "common/base/partition.hpp"
#include "common/memory/partial_sum.hpp"
#include "common/messages/group.hpp"

/// @file
/// Reduce-scatter in the order of tree_sum(), for any number of ranks and of leaves.

namespace rankwise {

/// The leaves of a tree, dealt out among ranks: rank r has shard r of Partition(leaves, N).
class DealtLeaves {
 public:
  /// @param leaves  number of leaves of the tree; 0 if sums have no order.
  /// @param ranks   N >= 1.
  DealtLeaves(std::int64_t leaves, int ranks) : deal_(leaves, ranks) {}

  /// True if every rank has one subtree, and ranks that add neighbours first (halving.hpp) continue the tree: N and
  /// the leaves of a rank are powers of two. Also true if sums have no order.
  bool are_balanced() const;
  /// The subtrees of a rank.
  std::vector<Range> runs_of(std::int64_t rank) const;

 private:
  Partition deal_;
};

/// Leaves on each rank the finished sum of shard r of Partition(n, N), in its first subtree.
///
/// Each rank sends shard q of all its subtrees to rank q, which then has the sums over all runs of leaves, and adds
/// them in the tree.
///
/// 6 leaves   has          sends to 0     sends to 1     sends to 2     adds
/// rank 0     [0,2)                       [0,2)          [0,2)          ([0,2) + [2,4)) + [4,6) of shard 0
/// rank 1     [2,4)        [2,4)                         [2,4)          the same of shard 1
/// rank 2     [4,6)        [4,6)          [4,6)                         the same of shard 2
///
/// @param sum     (n) of any type that can be added, the same n on all ranks. On return only shard r of the first
///                subtree is valid.
/// @param leaves  leaves that each rank has summed.
/// @param group   the N >= 1 ranks that take part; all of them make this call.
/// @cost     a rank with k subtrees sends k n (N-1)/N elements in k (N-1) messages; scratch of n/N elements for each
///           subtree of all ranks.
/// @failure  a communication error ends the whole job with rank, file and line.
void subtree_reduce_scatter_sum(const PartialSum& sum, const DealtLeaves& leaves, Group& group);

}  // namespace rankwise
