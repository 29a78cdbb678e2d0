#pragma once

#include <cmath>
#include <cstdint>

#include "common/base/portable_math.hpp"
#include "gpt2/kernels/attention_heads.hpp"
#include "gpt2/kernels/dropout_mask.hpp"
#include "gpt2/kernels/kernels.hpp"

/// @file
/// What the two references of attention have in common, on the host and on a GPU: the sizes of a layer, and soft-maxes
/// before the division. Fast kernels do not include it: their compilers may contract a*b+c, and a template compiled in
/// both ways is one function in the program.

namespace rankwise {

/// Sizes, positions, mask and dropout that all computations with a run of queries and a run of keys need.
/// @tparam A  type of sums.
template <class A>
struct ReferenceLayer {
  /// Lengths of @p of are in the memory of the device that computes.
  ReferenceLayer(const AttentionShape& of, const AttentionRuns& tokens, const Dropout& dropout)
      : shape(of),
        runs(tokens),
        visible_keys(of),
        mask(dropout),
        dropped(dropout.active()),
        scale(1 / std::sqrt(static_cast<A>(of.D))),
        key_order(SumOrder::tokens(tokens.keys, of.T)),
        query_order(SumOrder::tokens(tokens.queries, of.T))
  {
  }
  /// The keys that query @p q of the run sees.
  constexpr KeyLeaves seen(std::int64_t b, std::int64_t q) const { return {key_order, visible_keys(b, q, runs)}; }
  /// Index of query @p q of a head among the (B, heads, queries) rows of statistics.
  constexpr std::int64_t row(std::int64_t b, std::int64_t h, std::int64_t q) const
  {
    return (b * shape.heads.count + h) * runs.queries.count + q;
  }
  /// Offset of its D channels in (B queries, D heads).
  constexpr std::int64_t offset(std::int64_t b, std::int64_t h, std::int64_t q) const
  {
    return ((b * runs.queries.count + q) * shape.heads.count + h) * shape.D;
  }

  AttentionShape shape;      ///< sizes of the layer
  AttentionRuns runs;        ///< tokens of the queries and of the keys
  VisibleKeys visible_keys;  ///< keys that a query sees
  DropoutMask mask;          ///< mask of the attention weights
  bool dropped;              ///< true if there is dropout
  A scale;                   ///< factor of the scores, 1 / sqrt(D)
  SumOrder key_order;        ///< order of sums over the keys
  SumOrder query_order;      ///< order of sums over the queries
};

/// The queries, keys and values that a kernel reads: from one tensor for a whole layer, from two for runs.
template <class T>
struct HeadSource {
  /// One head of one sequence.
  constexpr HeadView<T> head(const ReferenceLayer<Accumulator<T>>& layer, std::int64_t b, std::int64_t h) const
  {
    if (kv == nullptr) return {qkv, layer.shape, b, h};
    return {qkv, kv, layer.shape, layer.runs, b, h};
  }

  T* qkv;           ///< (B queries, 3 D heads)
  T* kv = nullptr;  ///< (B keys, 2 D heads), or null: keys and values are in qkv
};

/// A soft-max over some of the keys that a query sees, as it is before the division.
template <class A>
struct SoftmaxView {
  A& maximum;  ///< largest score
  A& sum;      ///< sum over the keys of exp(score - maximum); 0: there are no keys
  A* output;   ///< sum of factor exp(score - maximum) v, for some channels
};

/// Two of them together, for @p channels channels: both are brought to the larger maximum M,
///     sum = sum exp(m - M) + sum' exp(m' - M), and output likewise.
/// @source  Milakov and Gimelshein 2018, section 3, equation 4.
template <class A>
constexpr void merge(const SoftmaxView<A>& into, const SoftmaxView<A>& from, std::int64_t channels)
{
  if (from.sum == 0) return;
  const bool first = into.sum == 0;
  const A maximum = first || into.maximum < from.maximum ? from.maximum : into.maximum;
  const A a = first ? A(0) : portable::exp(into.maximum - maximum), b = portable::exp(from.maximum - maximum);
  into.maximum = maximum;
  into.sum = into.sum * a + from.sum * b;
  for (std::int64_t d = 0; d < channels; ++d) into.output[d] = into.output[d] * a + from.output[d] * b;
}

/// y[d] = output[d] / sum, for @p channels channels. Returns the log of the sum of exponentials.
template <class T, class A>
constexpr A divide(T* y, const SoftmaxView<A>& softmax, std::int64_t channels)
{
  for (std::int64_t d = 0; d < channels; ++d) y[d] = T(softmax.output[d] / softmax.sum);
  return softmax.maximum + portable::log(softmax.sum);
}

/// The tensors of a SoftmaxPartial, row by row of (B, heads, queries).
template <class A>
struct PartialView {
  /// Views all rows of @p partial.
  explicit PartialView(const SoftmaxPartial& partial)
      : heads(partial.sum.extent(1)),
        queries(partial.sum.extent(2)),
        rows(partial.sum.elements()),
        D(partial.output.elements() / rows),
        maximum(partial.maximum.data<A>()),
        sum(partial.sum.data<A>()),
        output(partial.output.data<A>())
  {
  }
  /// Offset of the channels of row @p i in (B queries, D heads).
  constexpr std::int64_t offset(std::int64_t i) const
  {
    return ((i / (heads * queries) * queries + i % queries) * heads + i / queries % heads) * D;
  }
  /// The soft-max of row @p i.
  constexpr SoftmaxView<A> operator[](std::int64_t i) const { return {maximum[i], sum[i], output + offset(i)}; }

  std::int64_t heads;    ///< heads of a sequence
  std::int64_t queries;  ///< queries of a head
  std::int64_t rows;     ///< B heads queries
  std::int64_t D;        ///< channels of a head
  A* maximum;            ///< (rows)
  A* sum;                ///< (rows)
  A* output;             ///< (B queries, D heads)
};

}  // namespace rankwise
