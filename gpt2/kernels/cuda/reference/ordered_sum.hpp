#pragma once

#include <array>
#include <cstdint>

#include "gpt2/kernels/sum_order.hpp"

/// @file
/// Sums in the order of tree_sum(), without its recursion: a thread of a GPU has a kilobyte of stack.

namespace rankwise {

/// leaf(0) + ... + leaf(count - 1) with the bits of tree_sum(0, count, leaf).
///
/// Leaves are processed in order; finished subtrees wait on a stack, the largest at the bottom. The number of
/// subtrees that leaf i completes is the number of factors of two in i + 1:
///
///     after leaf      0      1      2       3      4       5
///     stack           1      2      2 1     4      4 1     4 2       (leaves of each subtree)
///
/// If the count is not a power of two, the remaining subtrees are added from the top, as tree_sum() adds them.
///
/// @param count  number of leaves, 1 <= count < 2^32.
/// @param leaf   leaf(i) returns an f32; called once for each i, in increasing order.
template <class Leaf>
constexpr float stacked_sum(std::int64_t count, Leaf&& leaf)
{
  std::array<float, 32> subtrees{};
  std::size_t height = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    float sum = leaf(i);
    for (std::int64_t pairs = i + 1; pairs % 2 == 0; pairs /= 2) sum = subtrees[--height] + sum;
    subtrees[height++] = sum;
  }
  float sum = subtrees[--height];
  while (height > 0) sum = subtrees[--height] + sum;
  return sum;
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
