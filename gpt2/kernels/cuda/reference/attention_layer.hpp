#pragma once

#include <cmath>
#include <cstdint>

#include "gpt2/kernels/attention_heads.hpp"
#include "gpt2/kernels/cuda/reference/reference.hpp"
#include "gpt2/kernels/dropout_mask.hpp"
#include "gpt2/kernels/ordered_sum.hpp"
#include "gpt2/kernels/reference/reference.hpp"

/// @file
/// Parts that the forward and the backward pass of the reference kernels of attention share. For .cu files only.

namespace rankwise {

/// The dot product of two rows of D channels: lane_count interleaved sums, then added pairwise, as in the reference
/// kernels of the CPU.
template <class T>
__device__ float dot(const T* a, const T* b, std::int64_t D)
{
  return stacked_sum(lane_count, [&](std::int64_t lane) {
    float sum = 0;
    for (std::int64_t d = lane; d < D; d += lane_count) sum += widen(a[d]) * widen(b[d]);
    return sum;
  });
}

/// Number of neighbouring channels of a head that a thread computes at a time; it keeps them in a tree of sums.
constexpr std::int64_t most_channels_of_a_thread = 32;

/// Calls f(channels) for the channels of a head, at most most_channels_of_a_thread at a time.
template <class F>
__device__ void for_each_channels(std::int64_t D, F&& f)
{
  for (std::int64_t first = 0; first < D; first += most_channels_of_a_thread)
    f(intersect({0, D}, {first, most_channels_of_a_thread}));
}

/// A thread's sums over some channels of a head.
struct ChannelSums {
  /// at[d] += factor b[d] for each channel.
  template <class T>
  __device__ void add(float factor, const T* b, Range channels)
  {
    for (std::int64_t d = 0; d < channels.count; ++d) at[d] += factor * widen(b[channels.first + d]);
  }

  float at[most_channels_of_a_thread];  ///< one for each channel
};

/// Places of the tree over the leaves of a sequence.
struct SumTree {
  static constexpr std::int64_t places = tree_places(leaves_of_a_sequence);  ///< number of them

  /// at[0] = the sum of leaf(sums, i), which adds the terms of leaf i to sums that are 0.
  template <class Leaf>
  __device__ void sum(const SumOrder& order, Leaf&& leaf)
  {
    tree_in_places(
        order.leaves(),
        [&](std::int64_t place, std::int64_t i) {
          at[place] = {};
          leaf(at[place], i);
        },
        [&](std::int64_t place) {
          for (std::int64_t d = 0; d < most_channels_of_a_thread; ++d) at[place].at[d] += at[place + 1].at[d];
        });
  }

  ChannelSums at[places];  ///< the sums in each place
};

/// Sizes, positions, mask and dropout of a run of queries and a run of keys. Queries have B heads rows, head by
/// head of each sequence: row i is query i mod (queries) of head i / (queries). Keys likewise.
struct CudaReferenceLayer {
  /// Lengths of @p of are in the memory of the GPU.
  CudaReferenceLayer(const AttentionShape& of, const AttentionRuns& tokens, const Dropout& dropout)
      : shape(of),
        runs(tokens),
        visible_keys(of),
        mask(dropout),
        dropped(dropout.active()),
        scale(1 / std::sqrt(static_cast<float>(of.D))),
        key_order(SumOrder::tokens(tokens.keys, of.T)),
        query_order(SumOrder::tokens(tokens.queries, of.T))
  {
  }
  /// The keys of the run that query @p q of sequence @p b sees.
  __device__ KeyLeaves seen(std::int64_t b, std::int64_t q) const { return {key_order, visible_keys(b, q, runs)}; }
  /// Index of a query among the rows of statistics, (B, heads, queries).
  __device__ std::int64_t row(std::int64_t b, std::int64_t h, std::int64_t q) const
  {
    return (b * shape.heads.count + h) * runs.queries.count + q;
  }
  /// Offset of a query in (B queries, D heads).
  __device__ std::int64_t offset(std::int64_t b, std::int64_t h, std::int64_t q) const
  {
    return ((b * runs.queries.count + q) * shape.heads.count + h) * shape.D;
  }
  /// The dropout factor of the weight of key @p k for query @p q.
  __device__ float factor(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k) const
  {
    if (!dropped) return 1;
    const std::int64_t key = runs.keys.first + k;
    return static_cast<float>(mask.factors(b, q, shape.heads.first + h, key)[key % 4]);
  }

  AttentionShape shape;      ///< sizes of the layer
  AttentionRuns runs;        ///< tokens of the queries and of the keys
  VisibleKeys visible_keys;  ///< keys that a query sees
  DropoutMask mask;          ///< mask of the attention weights
  bool dropped;              ///< true if there is dropout
  float scale;               ///< factor of the scores, 1 / sqrt(D)
  SumOrder key_order;        ///< order of sums over the keys
  SumOrder query_order;      ///< order of sums over the queries
};

/// The queries, keys and values that a kernel reads: from one tensor for a whole layer, from two for runs.
template <class T>
struct HeadSource {
  /// One head of one sequence.
  __device__ HeadView<T> head(const CudaReferenceLayer& layer, std::int64_t b, std::int64_t h) const
  {
    if (kv == nullptr) return {qkv, layer.shape, b, h};
    return {qkv, kv, layer.shape, layer.runs, b, h};
  }

  T* qkv;  ///< (B queries, 3 D heads)
  T* kv;   ///< (B keys, 2 D heads), or null: keys and values are in qkv
};

/// Calls f(b, h, t) in a thread for each of @p tokens tokens of each head.
template <class F>
void for_each_token(cudaStream_t stream, const AttentionShape& shape, std::int64_t tokens, const F& f)
{
  const std::int64_t heads = shape.heads.count;
  for_each(stream, shape.B * heads * tokens, [=] __device__(std::int64_t i) {
    const std::int64_t bh = i / tokens;
    f(bh / heads, bh % heads, i % tokens);
  });
}

}  // namespace rankwise
