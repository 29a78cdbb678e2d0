#pragma once

#include <cstdint>

#include "gpt2/kernels/kernels.hpp"

/// @file
/// The keys that a query sees, and access to the queries, keys and values of a head, for all kernels of attention, on the
/// host and on a GPU.

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

}  // namespace rankwise
