#pragma once

#include <cstdint>

#include "gpt2/kernels/kernels.hpp"

/// @file
/// Which keys a query sees, for all kernels of attention, and access to one head's queries, keys and values, for the
/// reference kernels; on the host and on a GPU.

namespace rankwise {

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

/// One head of one sequence: its queries, keys and values inside (R, 3 D heads).
template <class T>
struct HeadView {
  /// @param qkv    (R, 3 D heads): q, k, v, each head by head.
  /// @param shape  sizes of the layer.
  /// @param b      the sequence.
  /// @param h      the head, from 0 in this tensor-parallel shard.
  constexpr HeadView(T* qkv, const AttentionShape& shape, std::int64_t b, std::int64_t h)
      : first(qkv + b * shape.T * 3 * shape.heads.count * shape.D + h * shape.D),
        section(shape.heads.count * shape.D),
        D(shape.D)
  {
  }
  /// The D channels of the query of token @p t.
  constexpr T* query(std::int64_t t) const { return first + t * 3 * section; }
  /// The D channels of its key.
  constexpr T* key(std::int64_t t) const { return query(t) + section; }
  /// The D channels of its value.
  constexpr T* value(std::int64_t t) const { return query(t) + 2 * section; }

  T* first;              ///< the query of token 0
  std::int64_t section;  ///< D heads: elements between a token's query, key and value
  std::int64_t D;        ///< channels of a head
};

/// One head of a sequence whose keys and values are cached,
/// (tokens, 2 D heads); its queries begin at a later token.
template <class T>
struct CachedHeadView {
  /// @param qkv     (R, 3 D heads) of the tokens @p tokens; only the queries are used.
  /// @param cache   (at least tokens.end(), 2 D heads): k, v of the whole sequence, each head by head.
  /// @param shape   sizes of the layer.
  /// @param tokens  positions of the queries' tokens in the sequence.
  /// @param h       the head, from 0 in this tensor-parallel shard.
  constexpr CachedHeadView(T* qkv, T* cache, const AttentionShape& shape, Range tokens, std::int64_t h)
      : queries(qkv + h * shape.D),
        keys(cache + h * shape.D),
        section(shape.heads.count * shape.D),
        D(shape.D),
        first_query(tokens.first)
  {
  }
  /// The D channels of the query of token @p t, one of the tokens that are computed.
  constexpr T* query(std::int64_t t) const { return queries + (t - first_query) * 3 * section; }
  /// The D channels of the key of token @p t.
  constexpr T* key(std::int64_t t) const { return keys + t * 2 * section; }
  /// The D channels of its value.
  constexpr T* value(std::int64_t t) const { return key(t) + section; }

  T* queries;                ///< the query of token first_query
  T* keys;                   ///< the key of token 0
  std::int64_t section;      ///< D heads: elements between a token's key and value
  std::int64_t D;            ///< channels of a head
  std::int64_t first_query;  ///< the first token that has a query here
};

}  // namespace rankwise
