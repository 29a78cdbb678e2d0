#pragma once

#include <array>
#include <bit>
#include <cstdint>

/// @file
/// The canonical order in which many values are added.

namespace rankwise {

/// The sum of leaf(first) ... leaf(first + count - 1), added as a balanced binary tree, leaves in order.
///
///         +             For a power-of-two count every aligned power-of-two run of leaves is a subtree. So the sum
///      /     \          has the same bits whether one caller adds all leaves, or several callers add aligned runs
///     +       +         whose sums are then added pairwise, neighbours first: the halving collective, the micro-batches
///    / \     / \        of GradientSum and the shards of a tensor-parallel layer are upper levels of this tree.
///   0   1   2   3       For other counts the left subtree is the largest power of two below the count.
///
/// @param first  index of the first leaf.
/// @param count  number of leaves, >= 1.
/// @param leaf   leaf(i) returns a value with operator+; called once for each i, in increasing order.
/// @source       pairwise summation: Higham 1993, doi:10.1137/0914050.
template <class Leaf>
constexpr auto tree_sum(std::int64_t first, std::int64_t count, Leaf&& leaf) -> decltype(leaf(first))
{
  if (count == 1) return leaf(first);
  const auto left = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(count)) / 2);
  auto sum = tree_sum(first, left, leaf);
  return sum + tree_sum(first + left, count - left, leaf);
}

/// Number of places that tree_in_places() needs for @p count leaves.
constexpr std::int64_t tree_places(std::int64_t count)
{
  return std::bit_width(static_cast<std::uint64_t>(count));
}

/// The tree of tree_sum() over values that are too large to be returned, or that are combined otherwise than by +. The
/// result is in place 0. There is no recursion: a thread of a GPU has a kilobyte of stack.
///
/// Leaves are processed in order. Finished subtrees wait in places, the largest in place 0. The number of subtrees
/// that leaf i completes is the number of factors of two in i + 1:
///
///     after leaf      0      1      2       3      4       5
///     places          1      2      2 1     4      4 1     4 2       (leaves of each subtree)
///
/// If the count is not a power of two, the remaining subtrees are combined from the last place, as tree_sum() does it.
///
/// @param count    number of leaves, >= 1.
/// @param leaf     leaf(place, i) writes leaf i into a place.
/// @param combine  combine(place) replaces the value of a place by its combination with that of the next place.
template <class Leaf, class Combine>
constexpr void tree_in_places(std::int64_t count, Leaf&& leaf, Combine&& combine)
{
  std::int64_t height = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    leaf(height++, i);
    for (std::int64_t pairs = i + 1; pairs % 2 == 0; pairs /= 2) combine(--height - 1);
  }
  while (height > 1) combine(--height - 1);
}

/// The tree of tree_sum() over values that are all there, in any memory. The result is in value 0.
/// @param count    number of values, >= 1.
/// @param combine  combine(i, j) replaces value i by its combination with value j.
template <class Combine>
constexpr void tree_over(std::int64_t count, Combine&& combine)
{
  for (std::int64_t step = 1; step < count; step *= 2)
    for (std::int64_t i = 0; i + step < count; i += 2 * step) combine(i, i + step);
}

/// W neighbouring outputs summed in parallel, each by the same tree.
///
/// The reference kernels vectorise over outputs only, so vectorisation does not change the order of any sum.
template <class T, int W>
struct Lanes {
  alignas(64) std::array<T, W> at{};  ///< the W values

  /// Lane by lane.
  friend constexpr Lanes operator+(const Lanes& a, const Lanes& b)
  {
    Lanes sum;
    for (int w = 0; w < W; ++w) sum.at[w] = a.at[w] + b.at[w];
    return sum;
  }
};

}  // namespace rankwise
