#pragma once

#include <array>
#include <cstdint>

#include "common/base/tree_sum.hpp"
#include "gpt2/kernels/sum_order.hpp"

/// @file
/// Sums in the order of tree_sum(), without its recursion: a thread of a GPU has a kilobyte of stack.

namespace rankwise {

/// leaf(0) + ... + leaf(count - 1) with the bits of tree_sum(0, count, leaf).
/// @param count  number of leaves, 1 <= count < 2^32.
/// @param leaf   leaf(i) returns an f32; called once for each i, in increasing order.
template <class Leaf>
constexpr float stacked_sum(std::int64_t count, Leaf&& leaf)
{
  std::array<float, 32> subtrees{};
  tree_in_places(
      count, [&](std::int64_t place, std::int64_t i) { subtrees[static_cast<std::size_t>(place)] = leaf(i); },
      [&](std::int64_t place) {
        const auto at = static_cast<std::size_t>(place);
        subtrees[at] = subtrees[at] + subtrees[at + 1];
      });
  return subtrees[0];
}

/// The sum of term(i) over all terms of @p order: those of a leaf one by one, the leaves by stacked_sum().
template <class Term>
constexpr float ordered_sum(const SumOrder& order, Term&& term)
{
  return stacked_sum(order.leaves(), [&](std::int64_t leaf) {
    float sum = 0;
    for (std::int64_t run = 0; run < order.runs(); ++run) {
      const Range terms = order.run(leaf, run);
      for (std::int64_t i = terms.first; i < terms.end(); ++i) sum += term(i);
    }
    return sum;
  });
}

}  // namespace rankwise
