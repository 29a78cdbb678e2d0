#pragma once

#include <cmath>
#include <cstdint>

#include "common/base/portable_math.hpp"
#include "gpt2/kernels/dropout_mask.hpp"
#include "gpt2/kernels/kernels.hpp"

/// @file
/// The keys that a query sees, for all kernels of attention; and what the two references have in common: access to
/// the queries, keys and values of a head, the sizes of a layer, and soft-maxes before the division. On the host and on
/// a GPU.

namespace rankwise {

/// The runs of a whole layer.
inline AttentionRuns all_tokens(const AttentionShape& shape)
{
  return {{0, shape.T}, {0, shape.T}};
}

/// The keys that each query sees: those that the mask allows and that are no padding. A query
/// sees as many as the one before it or more, and always the first.
class VisibleKeys {
 public:
  /// @param shape  mask and lengths; the lengths are in the memory of the device that calls the function.
  explicit VisibleKeys(const AttentionShape& shape)
      : mask_(shape.mask),
        T_(shape.T),
        lengths_(shape.lengths.empty() ? nullptr : shape.lengths.data<std::int32_t>())
  {
    check(shape.lengths.empty() || shape.lengths.elements() == shape.B,
          "attention needs a length for each sequence");
  }
  /// Number of keys of @p runs, counted from the first of the run, that query @p q of the run sees.
  constexpr std::int64_t operator()(std::int64_t b, std::int64_t q, const AttentionRuns& runs) const
  {
    return intersect(runs.keys, {0, (*this)(b, runs.queries.first + q)}).count;
  }
  /// Number of keys, counted from the first, that the token at @p query of sequence @p b sees.
  constexpr std::int64_t operator()(std::int64_t b, std::int64_t query) const
  {
    const std::int64_t keys = mask_.visible_keys(query, T_);
    return lengths_ != nullptr && lengths_[b] < keys ? lengths_[b] : keys;
  }

 private:
  Mask mask_;
  std::int64_t T_;
  const std::int32_t* lengths_;  // (B), or null
};

/// One head of one sequence: the queries of a run of tokens, and the keys and values of the same or another run.
template <class T>
struct HeadView {
  /// Queries, keys and values of a whole layer.
  /// @param qkv    (B T, 3 D heads): q, k, v, each head by head.
  /// @param shape  sizes of the layer.
  /// @param b      the sequence.
  /// @param h      the head, from 0 in this tensor-parallel shard.
  constexpr HeadView(T* qkv, const AttentionShape& shape, std::int64_t b, std::int64_t h)
      : section(shape.heads.count * shape.D),
        D(shape.D),
        queries(qkv + b * shape.T * 3 * section + h * D),
        keys(queries + section),
        key_stride(3 * section)
  {
  }
  /// Queries of one run of tokens, keys and values of another.
  /// @param qkv   (B queries, 3 D heads) of the first run; only its queries are used.
  /// @param kv    (B keys, 2 D heads): k, v, each head by head.
  /// @param runs  tokens of the queries and of the keys.
  constexpr HeadView(T* qkv, T* kv, const AttentionShape& shape, const AttentionRuns& runs, std::int64_t b,
                     std::int64_t h)
      : section(shape.heads.count * shape.D),
        D(shape.D),
        queries(qkv + b * runs.queries.count * 3 * section + h * D),
        keys(kv + b * runs.keys.count * 2 * section + h * D),
        key_stride(2 * section)
  {
  }
  /// The D channels of query @p q of the run.
  constexpr T* query(std::int64_t q) const { return queries + q * 3 * section; }
  /// The D channels of key @p k of the run.
  constexpr T* key(std::int64_t k) const { return keys + k * key_stride; }
  /// The D channels of its value.
  constexpr T* value(std::int64_t k) const { return key(k) + section; }

  std::int64_t section;     ///< D heads: elements between a token's key and value
  std::int64_t D;           ///< channels of a head
  T* queries;               ///< the first query
  T* keys;                  ///< the first key
  std::int64_t key_stride;  ///< elements between a key and the next one
};

/// The keys of a run that a query sees, in the order in which they are summed: leaf by leaf.
struct KeyLeaves {
  SumOrder order;     ///< order of the sum over all keys of the run
  std::int64_t keys;  ///< number of keys that the query sees, counted from the first of the run

  /// The keys of leaf @p leaf that the query sees.
  constexpr Range seen(std::int64_t leaf) const { return intersect(order.run(leaf, 0), {0, keys}); }
};

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
