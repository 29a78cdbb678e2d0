#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "gpt2/kernels/attention_heads.hpp"
#include "gpt2/kernels/cpu/gemm.hpp"
#include "gpt2/kernels/cpu/gemm_amx.hpp"
#include "gpt2/kernels/cpu/vector_math.hpp"
#include "gpt2/kernels/dropout_mask.hpp"

/// @file
/// Blocks of scores, for the fast kernels of attention.
///
/// The scores of a head are a T x T matrix. It is computed in blocks of query_block x key_block that stay in cache,
/// and never stored: the forward pass carries the maximum and the sum of each row's softmax from block to block
/// (Milakov and Gimelshein 2018; Dao et al. 2022, algorithm 1), the backward pass computes each block again (there,
/// algorithm 4). Blocks that the mask hides are skipped.
///
/// In bf16 the factors of all products are bf16: weights and gradients of scores are rounded, as on the tensor cores
/// of a GPU. Sums over blocks, of outputs and of gradients, are kept in f32 until they are complete.

namespace rankwise {

/// Queries of a block.
constexpr std::int64_t query_block = 128;
/// Keys of a block.
constexpr std::int64_t key_block = 128;
/// Scratch memory for a block of scores.
constexpr std::int64_t block_floats = query_block * key_block;

/// One head of one sequence inside a larger matrix: its queries, keys, values, outputs, or gradients.
template <class T>
struct HeadRows {
  T* first;                      ///< channel 0 of the first token
  std::int64_t stride;           ///< elements from one token to the next
  std::int64_t first_token = 0;  ///< position of the first token in the sequence

  /// Channel 0 of token @p t.
  T* row(std::int64_t t) const { return first + (t - first_token) * stride; }
  /// The rows from token @p t on.
  GemmOperand<T> from(std::int64_t t) const { return {row(t), stride}; }
  /// The same, transposed.
  GemmOperand<T> transposed_from(std::int64_t t) const { return {row(t), stride, true}; }
};

/// Some rows of a head of D channels as an operand. In bf16 they are copied to @p scratch without gaps where the library
/// multiplies, because its product of rows with gaps is several times slower; else they are used in place.
template <class T>
HeadRows<T> side_by_side(const HeadRows<T>& rows, Range tokens, std::int64_t D, T* scratch)
{
  if constexpr (std::is_same_v<T, float>) {
    return rows;
  } else {
    if (amx_multiplies_bf16()) return rows;
    for (std::int64_t t = tokens.first; t < tokens.end(); ++t)
      std::copy_n(rows.row(t), D, scratch + (t - tokens.first) * D);
    return {scratch, D, tokens.first};
  }
}

/// One head inside (B tokens, ...) with @p stride elements a token: D channels from column @p column on.
/// @param tokens  positions of the rows in each sequence.
template <class T>
HeadRows<T> head_rows(const Tensor& rows, std::int64_t b, Range tokens, std::int64_t stride, std::int64_t column)
{
  return {rows.data<T>() + b * tokens.count * stride + column, stride, tokens.first};
}

/// A block of scores: some queries times some keys, row by row; and its copy rounded to type T, which in f32 is the
/// block itself.
template <class T>
struct Block {
  Range queries;  ///< positions of the queries
  Range keys;     ///< positions of the keys
  float* scores;  ///< (queries, stride())
  T* rounded;     ///< (queries, stride()) the rounded copy; in f32 the same memory

  /// Numbers from one row to the next: in bf16 the smallest multiple of a vector.
  std::int64_t stride() const { return std::is_same_v<T, float> ? key_block : whole_vectors(keys.count); }
  /// The scores of one query.
  float* row(std::int64_t query) const { return scores + (query - queries.first) * stride(); }
  /// The block as a factor.
  GemmOperand<T> whole() const { return {rounded, stride()}; }
  /// The same, transposed.
  GemmOperand<T> transposed() const { return {rounded, stride(), true}; }
  /// In bf16: rounds the scores of one query to `rounded`.
  void round(std::int64_t query) const
  {
    if constexpr (!std::is_same_v<T, float>)
      round_row(rounded + (query - queries.first) * stride(), row(query), stride());
  }
  /// Number of the block's keys that are among the first @p seen of the sequence.
  std::int64_t visible(std::int64_t seen) const
  {
    return std::clamp<std::int64_t>(seen - keys.first, 0, keys.count);
  }
};

/// The block of at most @p length elements that begins at @p first and ends before @p end.
inline Range block_at(std::int64_t first, std::int64_t length, std::int64_t end)
{
  return {first, std::min(length, end - first)};
}

/// The mask of attention dropout of one head of one sequence.
struct HeadDropout {
  /// @param dropout  mask of the layer.
  /// @param b        the sequence.
  /// @param h        the head, of all H.
  HeadDropout(const Dropout& dropout, std::int64_t b, std::int64_t h)
      : mask(dropout), active(dropout.active()), first_query(dropout.rows.tokens.first), sequence(b), head(h)
  {
  }
  /// Multiplies the weights of one query by their dropout factors; @p weights begins at key @p first.
  void apply(float* weights, std::int64_t query, std::int64_t first, std::int64_t count) const
  {
    if (!active) return;
    for (std::int64_t four = first / 4 * 4; four < first + count; four += 4) {
      const std::array<double, 4> factors = mask.factors(sequence, query - first_query, head, four);
      for (std::int64_t k = std::max(four, first); k < std::min(four + 4, first + count); ++k)
        weights[k - first] *= static_cast<float>(factors[static_cast<std::size_t>(k - four)]);
    }
  }

  DropoutMask mask;          ///< mask of the layer
  bool active;               ///< true if anything is dropped
  std::int64_t first_query;  ///< position of the first row that the mask is for
  std::int64_t sequence;     ///< the sequence
  std::int64_t head;         ///< the head
};

/// The memory of a block's copy rounded to type T: in bf16 separate scratch memory.
template <class T>
T* rounded_block(float* scores, float* scratch)
{
  if constexpr (std::is_same_v<T, float>)
    return scores;
  else
    return reinterpret_cast<T*>(scratch);
}

}  // namespace rankwise
