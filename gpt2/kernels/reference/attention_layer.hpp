#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "gpt2/kernels/reference/reference.hpp"
#include "gpt2/kernels/reference_attention.hpp"

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

/// Fills @p to with the dropout factors of one query's attention weights, one for each of @p keys keys: 0 or 1 / (1 - rate).
/// Does nothing without dropout.
template <class A>
void fill_factors(std::vector<A>& to, const ReferenceLayer<A>& layer, std::int64_t b, std::int64_t q,
                  std::int64_t h, std::int64_t keys)
{
  if (!layer.dropped) return;
  std::array<double, 4> four{};
  for (std::int64_t k = 0; k < keys; ++k) {
    const std::int64_t key = layer.runs.keys.first + k;
    if (k == 0 || key % 4 == 0) four = layer.mask.factors(b, q, layer.shape.heads.first + h, key);
    to[static_cast<std::size_t>(k)] = static_cast<A>(four[static_cast<std::size_t>(key % 4)]);
  }
}

}  // namespace rankwise
