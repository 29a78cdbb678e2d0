#pragma once

#include <vector>

#include "common/base/error.hpp"
#include "common/base/partition.hpp"
#include "common/memory/tensor.hpp"

/// @file
/// Contribution of a rank to a sum over ranks.

namespace rankwise {

/// The sum over the terms of one rank, on its way to the sum over all ranks, which replaces the first tensor. It is one
/// tensor if the ranks may add in any order, or if the rank's terms are one subtree of the tree of tree_sum().
/// Otherwise it is several, because only the sum over all ranks can join them.
struct PartialSum {
  std::vector<Tensor> subtrees;  ///< (n) each: the sums over aligned_runs() of the rank's terms, in order

  /// The only tensor. Error if there are several.
  const Tensor& whole() const
  {
    check(subtrees.size() == 1, "the sum over this rank's terms is not one subtree");
    return subtrees.front();
  }
  /// whole(), for code that knows of one tensor only.
  operator const Tensor&() const { return whole(); }
  /// The sum of some elements only.
  PartialSum slice(Range elements) const
  {
    PartialSum part;
    for (const Tensor& subtree : subtrees) part.subtrees.push_back(subtree.slice(elements));
    return part;
  }
};

}  // namespace rankwise
