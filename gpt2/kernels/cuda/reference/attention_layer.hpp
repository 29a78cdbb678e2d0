#pragma once

#include <cmath>
#include <cstdint>

#include "gpt2/kernels/cuda/reference/reference.hpp"
#include "gpt2/kernels/reference/reference.hpp"
#include "gpt2/kernels/reference_attention.hpp"

/// @file
/// Parts that the forward and the backward pass of the reference kernels of attention share. For .cu files only.

namespace rankwise {

/// The dot product of two rows of D channels, one channel after the other.
template <class T>
__device__ float dot(const T* a, const T* b, std::int64_t D)
{
  return ordered_sum(SumOrder::sequential(D), [&](std::int64_t d) {
    return Factors<float>{widen(a[d]), widen(b[d])};
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
  /// at[d] += factor b[d], rounded once, for each channel.
  template <class T>
  __device__ void add(float factor, const T* b, Range channels)
  {
    for (std::int64_t d = 0; d < channels.count; ++d) at[d] = std::fma(factor, widen(b[channels.first + d]), at[d]);
  }
  /// Ends the sums: 0 is added, so that none is -0.
  __device__ void end()
  {
    for (float& sum : at) sum += 0;
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
    at[0].end();
  }

  ChannelSums at[places];  ///< the sums in each place
};

/// The layer as kernels of a GPU compute it.
using CudaReferenceLayer = ReferenceLayer<float>;

/// The dropout factor of the weight of key @p k for query @p q.
__device__ inline float factor_of(const CudaReferenceLayer& layer, std::int64_t b, std::int64_t h, std::int64_t q,
                                  std::int64_t k)
{
  if (!layer.dropped) return 1;
  const std::int64_t key = layer.runs.keys.first + k;
  return static_cast<float>(layer.mask.factors(b, q, layer.shape.heads.first + h, key)[key % 4]);
}

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
