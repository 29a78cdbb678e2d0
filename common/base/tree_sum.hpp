#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/partition.hpp"

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

/// True if two aligned runs of leaves are the halves of a larger one.
constexpr bool are_siblings(Range left, Range right)
{
  return left.count == right.count && left.end() == right.first && left.first % (2 * left.count) == 0;
}

/// The aligned power-of-two runs that make up @p leaves, as few as possible, in order: at most 2 log2 n of n leaves.
/// Each of them is a subtree of the sum over any number of leaves.
///
///     [3, 14)    3 | 4 5 6 7 | 8 9 10 11 | 12 13
inline std::vector<Range> aligned_runs(Range leaves)
{
  std::vector<Range> runs;
  for (std::int64_t first = leaves.first; first < leaves.end(); first = runs.back().end()) {
    const auto most = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(leaves.end() - first)));
    const std::int64_t aligned = first == 0 ? most : first & -first;
    runs.push_back({first, std::min(aligned, most)});
  }
  return runs;
}

/// The tree of tree_sum() over aligned runs that have been summed already. The result is in value 0.
/// @param runs     leaves that each value sums: runs that follow each other, from leaf 0 to the last one.
/// @param combine  combine(i, j) replaces value i by its combination with value j.
template <class Combine>
void tree_over_runs(std::span<const Range> runs, Combine&& combine)
{
  /// A subtree that waits for its sibling.
  struct Subtree {
    std::size_t value;
    Range leaves;
  };
  std::vector<Subtree> waiting;
  const auto combine_last = [&] {
    const Subtree right = waiting.back();
    waiting.pop_back();
    combine(waiting.back().value, right.value);
    waiting.back().leaves.count += right.leaves.count;
  };
  for (std::size_t i = 0; i < runs.size(); ++i) {
    waiting.push_back({i, runs[i]});
    while (waiting.size() > 1 && are_siblings(waiting[waiting.size() - 2].leaves, waiting.back().leaves))
      combine_last();
  }
  while (waiting.size() > 1) combine_last();
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
