#pragma once

#include <cstdint>
#include <vector>

#include "gpt2/kernels/exact/exact.hpp"
#include "gpt2/kernels/exact/packing.hpp"
#include "gpt2/kernels/exact/segments.hpp"
#include "gpt2/kernels/reference/attention_layer.hpp"

/// @file
/// Parts that the forward and the backward pass of exact attention share. For .cpp files only.

namespace rankwise {

/// Queries that are computed side by side: the columns of a tile.
constexpr std::int64_t block_queries = tile_columns;
/// Keys that are computed together, or more where a leaf has more.
constexpr std::int64_t block_keys = 64;

/// Channels of a head in whole registers.
constexpr std::int64_t padded(std::int64_t D)
{
  return column_blocks(D) * lane_count;
}

/// Number of blocks of @p queries queries.
constexpr std::int64_t query_blocks(std::int64_t queries)
{
  return (queries + block_queries - 1) / block_queries;
}

/// Writes the dropout factors of a block of queries: to[k block_queries + w] of key keys.first + k and query
/// queries.first + w.
inline void fill_block_factors(float* to, const ReferenceLayer<float>& layer, std::int64_t b, std::int64_t h,
                               Range queries, Range keys)
{
  std::vector<float> factors(static_cast<std::size_t>(keys.end()));
  for (std::int64_t w = 0; w < queries.count; ++w) {
    fill_factors(factors, layer, b, queries.first + w, h, keys.end());
    for (std::int64_t k = 0; k < keys.count; ++k)
      to[k * block_queries + w] = factors[static_cast<std::size_t>(keys.first + k)];
  }
}

}  // namespace rankwise
