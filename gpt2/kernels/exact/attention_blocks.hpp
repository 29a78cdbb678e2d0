#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

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

/// Numbers in memory that is aligned to 64 bytes; they begin as 0.
class AlignedFloats {
 public:
  /// @p floats of them.
  explicit AlignedFloats(std::int64_t floats) : memory_(static_cast<std::size_t>(column_blocks(floats))) {}
  /// The first one.
  float* data() { return memory_.data()->at.data(); }

 private:
  std::vector<Lanes<float, lane_count>> memory_;
};

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

/// Sums of any number of rows, and of columns in whole registers, tile by tile.
/// @param factors  those of the first tile; rows are read, and written, up to the next multiple of 4.
inline void sum_tiles(const TileFactors& factors, std::int64_t rows, std::int64_t columns,
                      std::span<const LeafPiece> pieces, const TilePlaces& places)
{
  for (std::int64_t column = 0; column < columns; column += tile_columns)
    for (std::int64_t row = 0; row < rows; row += tile_rows)
      sum_tile({factors.left + row * factors.left_row, factors.left_term, factors.left_row, factors.right + column,
                factors.right_term},
               {static_cast<int>(std::min<std::int64_t>(tile_rows, (rows - row + 3) / 4 * 4)),
                static_cast<int>(std::min<std::int64_t>(tile_columns, columns - column))},
               pieces, {places.at + row * places.row + column, places.row, places.place});
}

/// Writes the dropout factors of a block of queries: to[k stride + w] of key keys.first + k and query queries.first + w.
inline void fill_block_factors(float* to, std::int64_t stride, const ReferenceLayer<float>& layer, std::int64_t b,
                               std::int64_t h, Range queries, Range keys)
{
  std::vector<float> factors(static_cast<std::size_t>(keys.end()));
  for (std::int64_t w = 0; w < queries.count; ++w) {
    fill_factors(factors, layer, b, queries.first + w, h, keys.end());
    for (std::int64_t k = 0; k < keys.count; ++k)
      to[k * stride + w] = factors[static_cast<std::size_t>(keys.first + k)];
  }
}

}  // namespace rankwise
