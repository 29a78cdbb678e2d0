#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#endif

#include "gpt2/kernels/exact/sum_tiles.hpp"

/// @file
/// sum_tile() for the registers for which the including file is compiled. It calls no function of another file: a linker
/// keeps one of several copies of an inline function, and that one might use instructions that a processor does not have.

namespace rankwise {

namespace {

#if defined(__AVX512F__)
constexpr int lanes = 16, most_rows = 12, rows_of_pairs = 6;  // 24 of 32 registers hold sums
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int lanes = 8, most_rows = 6, rows_of_pairs = 3;  // 12 of 16
#else
constexpr int lanes = 4, most_rows = 6, rows_of_pairs = 3;
#endif

/// Terms of a leaf up to which storing its sum takes longer than loading the factors for fewer rows at a time.
constexpr std::int64_t short_leaf = 32;

using Vector [[gnu::vector_size(lanes * sizeof(float))]] = float;

Vector load(const float* from)
{
  Vector vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

/// a b + c in each lane, rounded once.
Vector fused(float a, Vector b, Vector c)
{
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(_mm512_set1_ps(a), b, c);
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_fmadd_ps(_mm256_set1_ps(a), b, c);
#else
  Vector sum;
  for (int i = 0; i < lanes; ++i) sum[i] = __builtin_fmaf(a, b[i], c[i]);
  return sum;
#endif
}

/// Adds @p terms terms to sums of R rows and V registers of columns, which stay in registers, and moves @p at behind them.
template <int R, int V, std::int64_t left_row>
[[gnu::always_inline]] inline void add_terms(Vector (&sum)[R][V], TileFactors& at, std::int64_t terms)
{
  for (std::int64_t k = 0; k < terms; ++k, at.left += at.left_term, at.right += at.right_term) {
    Vector b[V];
    for (int v = 0; v < V; ++v) b[v] = load(at.right + v * lanes);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) sum[r][v] = fused(at.left[r * left_row], b[v], sum[r][v]);
  }
}

/// Calls f(sum, place of the sum in memory) for each of R x V registers.
template <int R, int V, class F>
[[gnu::always_inline]] inline void for_each_sum(Vector (&sum)[R][V], const TilePlaces& to, int place, F&& f)
{
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) f(sum[r][v], to.at + place * to.place + r * to.row + v * lanes);
}

/// Sums of R rows and V registers of columns of a tile.
/// @tparam pairs  whether there are registers for the sums of two leaves, so that the first of a pair need not be stored.
template <int R, int V, std::int64_t left_row, bool pairs>
void sum_in_registers(TileFactors at, const LeafPiece* piece, std::int64_t pieces, TilePlaces to)
{
  for (const LeafPiece* const end = piece + pieces; piece != end; ++piece) {
    Vector sum[R][V]{};
    if (!piece->starts) for_each_sum(sum, to, piece->place, [](Vector& s, const float* from) { s = load(from); });
    add_terms<R, V, left_row>(sum, at, piece->terms);
    int place = piece->place, merges = piece->merges;
    if (pairs && merges == 0 && piece + 1 != end && piece[1].starts && piece[1].merges > 0) {
      ++piece;
      Vector second[R][V]{};
      add_terms<R, V, left_row>(second, at, piece->terms);
      for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) sum[r][v] += second[r][v];
      merges = piece->merges - 1;
    }
    for (; merges > 0; --merges)
      for_each_sum(sum, to, --place, [](Vector& s, const float* from) { s = load(from) + s; });
    for_each_sum(sum, to, place, [](const Vector& s, float* at_place) { std::memcpy(at_place, &s, sizeof s); });
  }
}

/// The function for as many rows and registers.
template <std::int64_t left_row>
auto strip_function(int rows, bool two, bool pairs)
{
  if (pairs)
    return two ? sum_in_registers<rows_of_pairs, 2, left_row, true>
               : sum_in_registers<rows_of_pairs, 1, left_row, true>;
  if (rows == 4) return two ? sum_in_registers<4, 2, left_row, false> : sum_in_registers<4, 1, left_row, false>;
  if (rows == 8) return two ? sum_in_registers<8, 2, left_row, false> : sum_in_registers<8, 1, left_row, false>;
  return two ? sum_in_registers<most_rows, 2, left_row, false> : sum_in_registers<most_rows, 1, left_row, false>;
}

/// sum_tiles(), with pointers in place of spans.
[[maybe_unused]] void sum_tiles_here(const TileFactors& factors, std::int64_t rows, std::int64_t columns,
                                     const LeafPiece* piece, std::int64_t pieces, const TilePlaces& places)
{
  const bool short_leaves = pieces > 1 && piece->terms <= short_leaf;
  const std::int64_t whole_rows = (rows + 3) / 4 * 4, whole_columns = (columns + 15) / 16 * 16;
  for (std::int64_t column = 0, width; column < whole_columns; column += width) {
    const bool two = whole_columns - column > lanes;
    width = two ? 2 * lanes : lanes;
    for (std::int64_t first = 0; first < whole_rows; first += tile_rows) {
      const int left = static_cast<int>(whole_rows - first < tile_rows ? whole_rows - first : tile_rows);
      const bool pairs = short_leaves && left == tile_rows;
      const int step = pairs ? rows_of_pairs : left <= most_rows ? left : left % most_rows == 0 ? most_rows : 4;
      const auto strip = factors.left_row == 1 ? strip_function<1>(step, two, pairs)
                                               : strip_function<rows_apart>(step, two, pairs);
      for (std::int64_t row = first; row < first + left; row += step)
        strip({factors.left + row * factors.left_row, factors.left_term, factors.left_row, factors.right + column,
               factors.right_term},
              piece, pieces, {places.at + row * places.row + column, places.row, places.place});
    }
  }
}

}  // namespace

}  // namespace rankwise
