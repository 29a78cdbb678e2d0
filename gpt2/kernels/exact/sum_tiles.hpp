#pragma once

#include <cstdint>
#include <span>

/// @file
/// Sums of products, a tile of outputs at a time, in vector registers, in the order of a SumOrder.
///
/// An output is one lane of one register, and its terms are added one after the other, whatever the width of the registers
/// is. So all processors give the bits of the plain loop.

namespace rankwise {

/// Most rows of a tile.
constexpr int tile_rows = 12;
/// Most columns of a tile.
constexpr int tile_columns = 32;
/// Numbers of a tile.
constexpr std::int64_t tile_floats = tile_rows * tile_columns;

/// Terms of one leaf that follow each other, and what is done with their sum. Finished subtrees wait in places, as
/// tree_in_places() says.
struct LeafPiece {
  std::int64_t terms;  ///< number of terms; may be 0
  bool starts = true;  ///< true if the leaf begins here, false if the sum so far is in @p place
  int place = 0;       ///< place of the leaf
  int merges = 0;      ///< number of waiting subtrees to which the sum is then added, the last one first
};

/// From one row of a left factor to the next: 1, or this where rows are apart and terms are neighbours. It is no power of
/// two, so that rows do not share the lines of a cache.
constexpr std::int64_t rows_apart = 272;

/// The factors of a product. Term k of row r of the left one is left[k left_term + r left_row], that of column c of the
/// right one is right[k right_term + c].
struct TileFactors {
  const float* left;        ///< first term of the first row
  std::int64_t left_term;   ///< from one term to the next
  std::int64_t left_row;    ///< from one row to the next: 1 or rows_apart
  const float* right;       ///< first term of the first column
  std::int64_t right_term;  ///< from one term to the next
};

/// The memory of sums: column c of row r in place p is at[p place + r row + c].
struct TilePlaces {
  float* at;           ///< first column of the first row in place 0
  std::int64_t row;    ///< from one row to the next
  std::int64_t place;  ///< from one place to the next
};

/// Adds the terms of @p pieces to a matrix of sums, one piece after the other, each term by a fused multiply-add. At the end
/// the sums are in the place that the last piece names, less its merges; a sum that is complete may be -0, and 0 is still to
/// be added.
/// @param rows     number of rows; up to the next multiple of 4 they are read and written.
/// @param columns  number of columns; up to the next multiple of 16 likewise.
void sum_tiles(const TileFactors& factors, std::int64_t rows, std::int64_t columns,
               std::span<const LeafPiece> pieces, const TilePlaces& places);

/// The same for registers of one width, with pointers in place of spans: sum_tiles_avx2() and sum_tiles_avx512() where the
/// processor has them.
using SumTiles = void(const TileFactors& factors, std::int64_t rows, std::int64_t columns, const LeafPiece* pieces,
                      std::int64_t count, const TilePlaces& places);

}  // namespace rankwise
