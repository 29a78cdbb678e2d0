#pragma once

#include <cstdint>

#include "gpt2/kernels/cuda/packs.hpp"
#include "gpt2/kernels/cuda/reduce.hpp"

/// @file
/// Building blocks of attention: tiles of tokens times channels
/// in shared memory, and their products. For .cu files only.
///
/// The 256 threads of a block form a square: thread (y, x) has lines n y ... n y + n - 1 and columns n x ... n x +
/// n - 1 of a product of 16 n lines and columns. The 16 threads of one y are neighbours in a warp, and no other
/// thread needs their lines.

namespace rankwise {

/// Threads along each side of the square.
constexpr int square = 16;
static_assert(square * square == block_threads);

/// Largest number of channels of a head.
constexpr std::int64_t most_channels = 256;

/// Sizes of tiles for up to 64 @p G channels. Tiles of many channels have fewer tokens, so that five of them fit
/// into a GPU's shared memory.
template <int G>
struct TileSize {
  static constexpr int n = G <= 2 ? 4 : 2;            ///< tokens of a thread
  static constexpr int tokens = square * n;           ///< tokens of the tile
  static constexpr int fours = square * G;            ///< groups of four channels of the tile; 64 G channels
  static constexpr unsigned blocks = G == 1 ? 2 : 1;  ///< wanted number of resident blocks on a multiprocessor
};

/// @p N neighbouring numbers that are read and written in one access.
template <int N>
struct alignas(4 * N) Numbers {
  float at[N];  ///< the numbers
};

/// Position of the calling thread along the second side of the square.
__device__ inline int thread_x()
{
  return static_cast<int>(threadIdx.x) % square;
}
/// Position of the calling thread along the first side of the square.
__device__ inline int thread_y()
{
  return static_cast<int>(threadIdx.x) / square;
}

/// Queries, keys, values or gradients of some tokens of one head.
///
/// Token n x + j is in line 16 j + x. So the 16 threads of one y read neighbouring lines when each of them reads
/// its j-th token. The length of a line is an odd number of groups of four, so these reads have no bank conflicts.
template <int G>
struct TokenTile {
  using Size = TileSize<G>;  ///< sizes of the tile

  Pack<4> at[Size::tokens][Size::fours + 1];  ///< by line and group of four channels

  /// The line of token @p j of the thread at position @p place.
  static constexpr int line(int place, int j) { return square * j + place; }

  /// Reads @p count tokens from memory; missing tokens and channels become zero. All threads of the block call it;
  /// neighbours read neighbouring groups of four.
  /// @param first   channel 0 of the first token.
  /// @param stride  floats from one token to the next.
  /// @param D       channels of the head.
  __device__ void load(const float* first, std::int64_t stride, std::int64_t count, std::int64_t D)
  {
    for (int i = static_cast<int>(threadIdx.x); i < Size::tokens * Size::fours; i += block_threads) {
      const int token = i / Size::fours, four = i % Size::fours;
      const bool here = token < count && 4 * four < D;
      at[line(token / Size::n, token % Size::n)][four] =
          here ? load_pack<4>(first + token * stride + 4 * four, D - 4 * four) : Pack<4>{};
    }
  }
};

/// Weights or gradients of scores, in natural order: line n y + i, columns n x ... in one access.
template <int G>
struct ScoreTile {
  using Size = TileSize<G>;  ///< sizes of the tile

  Numbers<Size::n> at[Size::tokens][square + 1];  ///< by line and by n columns
};

/// A thread's part of a product of two tiles: its n lines and n columns.
template <int G>
struct Scores {
  float at[TileSize<G>::n][TileSize<G>::n];  ///< by line and column

  /// The products of the thread's tokens of @p a with its tokens
  /// of @p b, over the first @p fours groups of four channels.
  __device__ static Scores of(const TokenTile<G>& a, const TokenTile<G>& b, int fours)
  {
    constexpr int n = TileSize<G>::n;
    const int y = thread_y(), x = thread_x();
    Scores sums{};
    for (int f = 0; f < fours; ++f) {
      Pack<4> left[n], right[n];
      for (int i = 0; i < n; ++i) left[i] = a.at[a.line(y, i)][f];
      for (int j = 0; j < n; ++j) right[j] = b.at[b.line(x, j)][f];
      for (int i = 0; i < n; ++i)
        for (int j = 0; j < n; ++j)
          for (int c = 0; c < 4; ++c) sums.at[i][j] += left[i].at[c] * right[j].at[c];
    }
    return sums;
  }

  /// Writes line @p i of the thread.
  __device__ void store(ScoreTile<G>& tile, int i) const
  {
    Numbers<TileSize<G>::n> columns;
    for (int j = 0; j < TileSize<G>::n; ++j) columns.at[j] = at[i][j];
    tile.at[TileSize<G>::n * thread_y() + i][thread_x()] = columns;
  }
};

/// A thread's part of an output of tokens times channels: its n lines, and groups x, x + 16, ... of four channels.
template <int G>
struct Outputs {
  Pack<4> at[TileSize<G>::n][G];  ///< by line and group of four channels

  /// += the thread's lines of @p weights, times the tokens of @p values.
  __device__ void add(const ScoreTile<G>& weights, const TokenTile<G>& values)
  {
    constexpr int n = TileSize<G>::n;
    const int y = thread_y(), x = thread_x();
    for (int k = 0; k < square; ++k) {
      Numbers<n> weight[n];
      for (int i = 0; i < n; ++i) weight[i] = weights.at[n * y + i][k];
      for (int j = 0; j < n; ++j)
        for (int g = 0; g < G; ++g) {
          const Pack<4> value = values.at[values.line(k, j)][x + square * g];
          for (int i = 0; i < n; ++i)
            for (int c = 0; c < 4; ++c) at[i][g].at[c] += weight[i].at[j] * value.at[c];
        }
    }
  }

  /// Multiplies line @p i by @p factor.
  __device__ void scale(int i, float factor)
  {
    for (Pack<4>& four : at[i])
      for (float& value : four.at) value *= factor;
  }

  /// Writes line @p i to the D channels at @p to.
  __device__ void store(float* to, int i, std::int64_t D) const
  {
    for (int g = 0; g < G; ++g) {
      const int channel = 4 * (thread_x() + square * g);
      if (channel < D) store_pack(to + channel, at[i][g], D - channel);
    }
  }
};

}  // namespace rankwise
