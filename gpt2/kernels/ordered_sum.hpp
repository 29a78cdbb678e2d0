#pragma once

#include <array>
#include <cstdint>

#include "common/base/tree_sum.hpp"
#include "common/memory/tensor.hpp"
#include "gpt2/kernels/sum_order.hpp"

/// @file
/// Sums in the order of tree_sum(), without its recursion: a thread of a GPU has a kilobyte of stack, and g++ inlines the
/// recursion into itself eight times over, which takes it five times as long.

namespace rankwise {

/// Converts an element to the type of its sums.
template <class T>
constexpr Accumulator<T> widen(T value)
{
  return static_cast<Accumulator<T>>(value);
}

/// leaf(0) + ... + leaf(count - 1) with the bits of tree_sum(0, count, leaf).
/// @param count  number of leaves, 1 <= count < 2^32.
/// @param leaf   leaf(i) returns a value with operator+; called once for each i, in increasing order.
template <class Leaf>
constexpr auto stacked_sum(std::int64_t count, Leaf&& leaf) -> decltype(leaf(count))
{
  using Value = decltype(leaf(count));
  if (count < 1) __builtin_unreachable();  // else a compiler sees a sum of no leaves, which would be uninitialised
  /// Finished subtrees that wait for their siblings. They are not initialised: most are never used.
  union Subtrees {
    constexpr Subtrees() {}
    std::array<Value, 32> at;
  } subtrees;
  const auto at = [&](std::int64_t place) -> Value& { return subtrees.at[static_cast<std::size_t>(place)]; };
  tree_in_places(
      count, [&](std::int64_t place, std::int64_t i) { at(place) = leaf(i); },
      [&](std::int64_t place) { at(place) = at(place) + at(place + 1); });
  return at(0);
}

/// The sum of term(i) over all terms of @p order: those of a leaf one by one, the leaves by stacked_sum().
template <class Term>
constexpr auto ordered_sum(const SumOrder& order, Term&& term) -> decltype(term(std::int64_t{}))
{
  return stacked_sum(order.leaves(), [&](std::int64_t leaf) {
    decltype(term(leaf)) sum = 0;
    for (std::int64_t run = 0; run < order.runs(); ++run) {
      const Range terms = order.run(leaf, run);
      for (std::int64_t i = terms.first; i < terms.end(); ++i) sum += term(i);
    }
    return sum;
  });
}

}  // namespace rankwise
