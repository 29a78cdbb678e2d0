#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <type_traits>

#include "gpt2/kernels/attention_heads.hpp"
#include "gpt2/kernels/cuda/attention_tiles.hpp"
#include "gpt2/kernels/dropout_mask.hpp"

/// @file
/// The tensors and sizes of an attention layer, as its thread blocks access them. For .cu files only.

namespace rankwise {

/// A tensor with the heads of all sequences: queries, keys, values, outputs, or gradients; f32 or bf16.
template <class T>
struct AttentionHeads {
  T* first;               ///< channel 0 of head 0 of the first token
  std::int64_t stride;    ///< elements from one token to the next
  std::int64_t sequence;  ///< elements from one sequence to the next
};

/// One of the three sections of (R, 3 D heads): 0 queries, 1 keys, 2 values.
template <class T>
AttentionHeads<T> section(const Tensor& qkv, const AttentionShape& shape, int which)
{
  const std::int64_t width = shape.heads.count * shape.D;
  return {qkv.data<T>() + which * width, 3 * width, shape.T * 3 * width};
}

/// The heads in (R, D heads).
template <class T>
AttentionHeads<T> outputs(const Tensor& y, const AttentionShape& shape)
{
  const std::int64_t width = shape.heads.count * shape.D;
  return {y.data<T>(), width, shape.T * width};
}

/// Sizes, mask and dropout that all kernels of attention need.
struct AttentionLayer {
  /// @param shape_of_keys  T is the number of keys of a sequence.
  /// @param query_tokens   tokens that have a query.
  /// @param dropout        dropout of the weights.
  AttentionLayer(const AttentionShape& shape_of_keys, Range query_tokens, const Dropout& dropout)
      : shape(shape_of_keys),
        first_query(query_tokens.first),
        queries(query_tokens.count),
        visible_keys(shape_of_keys),
        mask(dropout),
        dropping(dropout.active()),
        kept(static_cast<float>(1 / (1 - dropout.rate))),
        scale(1 / std::sqrt(static_cast<float>(shape_of_keys.D))),
        log2_scale(scale * std::numbers::log2e_v<float>)
  {
  }

  AttentionShape shape;         ///< T is the number of keys of a sequence
  std::int64_t first_query;     ///< token of the first query: 0, or the number of cached tokens
  std::int64_t queries;         ///< tokens of a sequence that have a query
  VisibleKeys visible_keys;     ///< keys that a query sees
  DropoutMask mask;             ///< dropout mask of the weights
  bool dropping;                ///< true if any weight is dropped
  float kept;                   ///< dropout factor of a weight that is not dropped
  float scale;                  ///< factor of the scores, 1 / sqrt(D)
  float log2_scale;             ///< the same factor when powers of two replace exponentials
  std::int64_t first_head = 0;  ///< first of the B heads of this shard that the launch computes

  /// Number of keys that query @p i of sequence @p b sees.
  __device__ std::int64_t visible(std::int64_t b, std::int64_t i) const { return visible_keys(b, first_query + i); }
  /// Number of groups of four channels of a head.
  __device__ int fours() const { return static_cast<int>(divided_up(shape.D, 4)); }
};

/// The sequence, the head and the tile of tokens that a thread block works on.
struct AttentionPlace {
  std::int64_t number;  ///< b heads + h
  std::int64_t b;       ///< the sequence
  std::int64_t h;       ///< the head, from 0 in this tensor-parallel shard
  std::int64_t tile;    ///< tile of the head's tokens

  /// The place of the calling block, when each head has @p tiles blocks.
  __device__ AttentionPlace(const AttentionLayer& layer, std::int64_t tiles)
      : number(layer.first_head + blockIdx.x / tiles),
        b(number / layer.shape.heads.count),
        h(number % layer.shape.heads.count),
        tile(blockIdx.x % tiles)
  {
  }
  /// Channel 0 of token @p t of the head.
  template <class T>
  __device__ T* in(const AttentionHeads<T>& heads, const AttentionLayer& layer, std::int64_t t) const
  {
    return heads.first + b * heads.sequence + h * layer.shape.D + t * heads.stride;
  }
};

/// Inputs and outputs of the forward pass.
template <class T>
struct ForwardTensors {
  AttentionHeads<T> y;  ///< outputs
  AttentionHeads<T> q;  ///< queries
  AttentionHeads<T> k;  ///< keys
  AttentionHeads<T> v;  ///< values
  float* log_sum_exp;   ///< (B, heads, queries), or null
};

/// Inputs and outputs of the backward pass.
template <class T>
struct BackwardTensors {
  AttentionHeads<T> dq;      ///< gradients of queries
  AttentionHeads<T> dk;      ///< gradients of keys
  AttentionHeads<T> dv;      ///< gradients of values
  AttentionHeads<T> dy;      ///< gradients of outputs
  AttentionHeads<T> y;       ///< outputs
  AttentionHeads<T> q;       ///< queries
  AttentionHeads<T> k;       ///< keys
  AttentionHeads<T> v;       ///< values
  const float* log_sum_exp;  ///< (B, heads, T)
  float* inner_products;     ///< (heads of the launch, T): dy y, the sum over keys of weight times its gradient

  /// The inner products of the block's head.
  __device__ float* inner(const AttentionPlace& place, const AttentionLayer& layer) const
  {
    return inner_products + (place.number - layer.first_head) * layer.queries;
  }
};

/// The dropout factors of the weights of one query for n neighbouring keys, from @p key, a multiple of n.
template <int n>
__device__ Numbers<n> factors_of(const AttentionLayer& layer, const AttentionPlace& place, std::int64_t query,
                                 std::int64_t key)
{
  Numbers<n> factors;
  for (float& factor : factors.at) factor = 1;
  if (!layer.dropping) return factors;
  const std::array<double, 4> four = layer.mask.factors(place.b, query, layer.shape.heads.first + place.h, key);
  const bool behind = key % 4 != 0;  // with n = 2: true for the last two of the four
  for (int j = 0; j < n; ++j)
    factors.at[j] =
        static_cast<float>(behind ? four[static_cast<std::size_t>(j + 4 - n)] : four[static_cast<std::size_t>(j)]);
  return factors;
}

/// Calls use(G) with a constant G, the smallest with 64 G >= D.
template <class Use>
void with_channels(std::int64_t D, const Use& use)
{
  check(D <= most_channels, "a head has more channels than attention on a GPU supports");
  if (D <= 64)
    use(std::integral_constant<int, 1>());
  else if (D <= 128)
    use(std::integral_constant<int, 2>());
  else if (D <= 192)
    use(std::integral_constant<int, 3>());
  else
    use(std::integral_constant<int, 4>());
}

/// One block for each tile of @p tokens tokens of @p heads heads.
template <int G, class Tiles>
Grid block_for_each_tile(cudaStream_t stream, std::int64_t heads, std::int64_t tokens,
                         SourceLocation where = SourceLocation::current())
{
  return {stream, dim3(static_cast<unsigned>(heads * divided_up(tokens, TileSize<G>::tokens))), block_threads,
          sizeof(Tiles), where};
}

}  // namespace rankwise
