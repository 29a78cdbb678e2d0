#pragma once

#include <cstdint>
#include <cuda_pipeline_primitives.h>
#include <gpu_instructions.h>

#include "common/cuda/launch.hpp"
#include "gpt2/kernels/cuda/packs.hpp"

/// @file
/// Products of tiles of 16 x 16 numbers that a warp computes
/// on tensor cores, bf16 with sums in f32. For .cu files only.
///
/// A tile is distributed over the registers of the 32 threads of a warp, and all of them call each function here.
/// Thread 4 i + j has, of each quarter of 8 x 8 numbers, numbers 2 j and 2 j + 1 of line i; of a right factor it
/// has those of column i. So a product of two tiles has the same layout as the left factor of the next product.

namespace rankwise {

/// Lines and columns of a tile.
constexpr int tile_side = 16;

/// Position of the calling thread in its warp.
__device__ inline int lane_number()
{
  return static_cast<int>(threadIdx.x) % warp_threads;
}
/// Index of the calling thread's warp in its block.
__device__ inline int warp_number()
{
  return static_cast<int>(threadIdx.x) / warp_threads;
}

/// Tokens times channels of one head in shared memory, line by line. The length of a line is an odd multiple of 16
/// bytes, so that the eight neighbouring lines that load_matrices() reads at once are in different banks.
template <int tokens, int channels>
struct TokenLines {
  static_assert(tokens % tile_side == 0 && channels % tile_side == 0);
  static constexpr int count = tokens;    ///< number of lines
  static constexpr int width = channels;  ///< numbers in a line

  alignas(16) bf16 at[tokens][channels + 8];  ///< by token and channel
};

struct ProductTile;

/// A left factor: (16 lines of a product, 16 terms).
struct LeftTile {
  unsigned at[4];  ///< pairs of terms: word r + 2 n has line i + 8 r, terms 8 n + 2 j and the next

  /// The tile of @p lines that begins at line @p line and column @p column.
  template <class Lines>
  __device__ static LeftTile of(const Lines& lines, int line, int column)
  {
    LeftTile tile;
    load_matrices<false>(tile.at, &lines.at[line + lane_number() % 16][column + 8 * (lane_number() / 16)]);
    return tile;
  }
  /// The product as a left factor, rounded to bf16.
  __device__ static LeftTile of(const ProductTile& product);
};

/// A right factor: (16 terms, 16 columns of a product).
struct RightTile {
  unsigned at[4];  ///< pairs of terms: word r + 2 n has terms 8 r + 2 j and the next of column i + 8 n

  /// Term k of column c of the product is number @p column + k of line @p line + c of @p lines.
  template <class Lines>
  __device__ static RightTile of_lines(const Lines& lines, int line, int column)
  {
    RightTile tile;
    const int lane = lane_number();
    load_matrices<false>(tile.at, &lines.at[line + lane % 8 + 8 * (lane / 16)][column + 8 * (lane / 8 % 2)]);
    return tile;
  }
  /// Term k of column c of the product is number @p column + c of line @p line + k of @p lines.
  template <class Lines>
  __device__ static RightTile of_columns(const Lines& lines, int line, int column)
  {
    RightTile tile;
    load_matrices<true>(tile.at, &lines.at[line + lane_number() % 16][column + 8 * (lane_number() / 16)]);
    return tile;
  }
};

/// A sum of products: (16 lines, 16 columns), in f32.
struct ProductTile {
  float at[2][2][2];  ///< [n][r][c] is line i + 8 r, column 8 n + 2 j + c

  /// The line of the thread's numbers [n][@p r][c].
  __device__ static int line(int r) { return lane_number() / 4 + 8 * r; }
  /// The column of the thread's numbers [@p n][r][@p c].
  __device__ static int column(int n, int c) { return 8 * n + 2 * (lane_number() % 4) + c; }

  /// += left right.
  __device__ void add(const LeftTile& left, const RightTile& right) { multiply_matrices(at, left.at, right.at); }
  /// Multiplies the lines line(@p r) by @p factor.
  __device__ void scale(int r, float factor)
  {
    for (int n = 0; n < 2; ++n)
      for (int c = 0; c < 2; ++c) at[n][r][c] *= factor;
  }
  /// Writes the tile, rounded, to @p lines from line @p line and column @p column on.
  template <class Lines>
  __device__ void store(Lines& lines, int line, int column) const
  {
    for (int n = 0; n < 2; ++n)
      for (int r = 0; r < 2; ++r)
        reinterpret_cast<Words<4>&>(lines.at[line + ProductTile::line(r)][column + ProductTile::column(n, 0)]) = {
            {rounded_pair(at[n][r][0], at[n][r][1])}};
  }
};

__device__ inline LeftTile LeftTile::of(const ProductTile& product)
{
  LeftTile tile;
  for (int n = 0; n < 2; ++n)
    for (int r = 0; r < 2; ++r) tile.at[r + 2 * n] = rounded_pair(product.at[n][r][0], product.at[n][r][1]);
  return tile;
}

}  // namespace rankwise
