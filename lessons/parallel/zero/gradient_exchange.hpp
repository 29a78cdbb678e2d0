#pragma once

#include <vector>

#include "common/base/partition.hpp"
#include "common/memory/partial_sum.hpp"
#include "common/messages/group.hpp"

/// @file
/// Sums of gradients over ranks, in however many tensors the arithmetic keeps them.

namespace rankwise {

/// Reduce-scatters gradients: rank r gets the sum over the ranks of shard r of Partition(n, N).
/// @param gradients  (n) on each rank, as GradientSum::finish() or BucketGradients::of() returns them. In exact arithmetic the
///                   head's gradient of the tied token embedding is a second tensor, which is all-reduced.
void reduce_scatter_sum(const std::vector<PartialSum>& gradients, Group& group);
/// Reduce-scatters gradients that each rank has in one term.
void reduce_scatter_sum(const std::vector<Tensor>& gradients, Group& group);

/// The sum of the gradients of a range of parameters.
struct SumOfRange {
  Range range;     ///< in the flat vector of the table
  PartialSum sum;  ///< (its elements)
};

/// The gradients of a stage, range by range, as its parameters are sharded. The tied token embedding, the first range, comes
/// twice if the arithmetic keeps two sums of its gradient.
/// @param sums    GradientSum::sums().
/// @param ranges  of the stage, one after the other.
std::vector<SumOfRange> by_range(const std::vector<PartialSum>& sums, const std::vector<Range>& ranges);

}  // namespace rankwise
