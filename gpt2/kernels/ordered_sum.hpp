#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

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

/// The two factors of a term of a sum of products.
template <class A>
struct Factors {
  A left;   ///< one factor
  A right;  ///< the other one
};

/// @p sum + @p term.
template <class A>
constexpr A with_term(A sum, A term)
{
  return sum + term;
}

/// @p sum + the product, rounded once: the fused multiply-add of IEEE 754.
template <class A>
constexpr A with_term(A sum, const Factors<A>& term)
{
  return std::fma(term.left, term.right, sum);
}

/// The type of the sum of terms that @p Term returns.
template <class Term>
using SumOf = decltype(with_term({}, std::declval<Term>()(std::int64_t{})));

/// The sum of term(i) over all terms of @p order: those of a leaf one by one, the leaves by stacked_sum(). At the end 0 is
/// added, so that the sum is not -0, with or without terms that are 0.
/// @param term  term(i) returns a number or Factors.
template <class Term>
constexpr auto ordered_sum(const SumOrder& order, Term&& term) -> SumOf<Term>
{
  return 0 + stacked_sum(order.leaves(), [&](std::int64_t leaf) {
           SumOf<Term> sum = 0;
           for (std::int64_t run = 0; run < order.runs(); ++run) {
             const Range terms = order.run(leaf, run);
             for (std::int64_t i = terms.first; i < terms.end(); ++i) sum = with_term(sum, term(i));
           }
           return sum;
         });
}

/// The sum of term(i) over @p terms, which no parallelism splits: 16 sums of every sixteenth term, then added pairwise. A
/// compiler keeps them in vector registers.
template <class Term>
constexpr auto interleaved_sum(Range terms, Term&& term) -> SumOf<Term>
{
  constexpr std::int64_t sums = 16;
  SumOf<Term> sum[sums]{};
  std::int64_t i = terms.first;
  for (; i + sums <= terms.end(); i += sums)
    for (std::int64_t w = 0; w < sums; ++w) sum[w] = with_term(sum[w], term(i + w));
  for (std::int64_t w = 0; i + w < terms.end(); ++w) sum[w] = with_term(sum[w], term(i + w));
  tree_over(sums, [&](std::int64_t left, std::int64_t right) { sum[left] += sum[right]; });
  return sum[0];
}

}  // namespace rankwise
