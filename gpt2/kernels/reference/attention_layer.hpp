#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gpt2/kernels/attention_heads.hpp"
#include "gpt2/kernels/dropout_mask.hpp"
#include "gpt2/kernels/reference/reference.hpp"

/// @file
/// Parts that the forward and the backward pass of the reference kernels of attention share. For .cpp files only.

namespace rankwise {

/// The dot product of two rows of D channels: lane_count interleaved sums, then added pairwise; the same order for
/// every head.
template <class T, class U>
auto dot(const T* a, const U* b, std::int64_t D)
{
  using A = Accumulator<T>;
  std::array<A, lane_count> sum{};
  for (std::int64_t d = 0; d + lane_count <= D; d += lane_count)
    for (std::size_t w = 0; w < lane_count; ++w)
      sum[w] += widen(a[d + static_cast<std::int64_t>(w)]) * widen(b[d + static_cast<std::int64_t>(w)]);
  for (std::int64_t d = D / lane_count * lane_count; d < D; ++d)
    sum[static_cast<std::size_t>(d % lane_count)] += widen(a[d]) * widen(b[d]);
  return tree_sum(0, lane_count, [&](std::int64_t w) { return sum[static_cast<std::size_t>(w)]; });
}

/// a[d] += factor b[d] for the D channels of a head.
template <class A, class T>
void add_scaled(A* a, A factor, const T* b, std::int64_t D)
{
  for (std::int64_t d = 0; d < D; ++d) a[d] += factor * widen(b[d]);
}

/// Sizes, positions, mask and dropout that all computations with a run of queries and a run of keys need.
template <class A>
struct ReferenceLayer {
  /// Refers to sizes and runs, which have to outlive it.
  ReferenceLayer(const AttentionShape& of, const AttentionRuns& tokens, const Dropout& dropout)
      : shape(of),
        runs(tokens),
        visible_keys(of),
        mask(dropout),
        dropped(dropout.active()),
        scale(1 / std::sqrt(static_cast<A>(of.D))),
        key_order(SumOrder::tokens(runs.keys, of.T)),
        query_order(SumOrder::tokens(runs.queries, of.T))
  {
  }
  /// The keys that query @p q of the run sees.
  KeyLeaves seen(std::int64_t b, std::int64_t q) const { return {key_order, visible_keys(b, q, runs)}; }
  /// The dropout factors of one query's attention weights, one for each of @p keys keys: 0 or 1 / (1 - rate).
  void factors(std::vector<A>& to, std::int64_t b, std::int64_t q, std::int64_t h, std::int64_t keys) const
  {
    if (!dropped) return;
    std::array<double, 4> four{};
    for (std::int64_t k = 0; k < keys; ++k) {
      const std::int64_t key = runs.keys.first + k;
      if (k == 0 || key % 4 == 0) four = mask.factors(b, q, shape.heads.first + h, key);
      to[static_cast<std::size_t>(k)] = static_cast<A>(four[static_cast<std::size_t>(key % 4)]);
    }
  }
  /// Index of query @p q of a head among the (B, heads, queries) rows of statistics.
  std::int64_t row(std::int64_t b, std::int64_t h, std::int64_t q) const
  {
    return (b * shape.heads.count + h) * runs.queries.count + q;
  }
  /// Offset of its D channels in (B queries, D heads).
  std::int64_t offset(std::int64_t b, std::int64_t h, std::int64_t q) const
  {
    return ((b * runs.queries.count + q) * shape.heads.count + h) * shape.D;
  }

  const AttentionShape& shape;  ///< sizes of the layer
  const AttentionRuns& runs;    ///< tokens of the queries and of the keys
  VisibleKeys visible_keys;     ///< keys that a query sees
  DropoutMask mask;             ///< mask of the attention weights
  bool dropped;                 ///< true if there is dropout
  A scale;                      ///< factor of the scores, 1 / sqrt(D)
  SumOrder key_order;           ///< order of sums over the keys
  SumOrder query_order;         ///< order of sums over the queries
};

}  // namespace rankwise
