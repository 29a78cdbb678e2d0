#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include "gpt2/kernels/exact/sum_tiles.hpp"
#include "gpt2/kernels/ordered_sum.hpp"

/// @file
/// Copies of the factors of a product, widened, in the order in which tiles read them.

namespace rankwise {

/// Copies rows of numbers that follow each other as columns: to[k width + r] = row(r)[k].
/// @param width  @p rows or more; what is behind them is left as it is.
/// @param row    row(r) returns the first number of a row.
template <class Row>
void pack_columns(float* to, std::int64_t width, std::int64_t rows, std::int64_t terms, Row&& row)
{
  std::int64_t r = 0;
#ifdef __SSE__
  // Four rows and four terms at a time, transposed in registers.
  for (; r + 4 <= rows; r += 4) {
    const decltype(row(r)) from[4]{row(r), row(r + 1), row(r + 2), row(r + 3)};
    const auto four = [&](int i, std::int64_t k) {
      return _mm_setr_ps(widen(from[i][k]), widen(from[i][k + 1]), widen(from[i][k + 2]), widen(from[i][k + 3]));
    };
    std::int64_t k = 0;
    for (; k + 4 <= terms; k += 4) {
      __m128 a = four(0, k), b = four(1, k), c = four(2, k), d = four(3, k);
      _MM_TRANSPOSE4_PS(a, b, c, d);
      float* const at = to + k * width + r;
      _mm_storeu_ps(at, a);
      _mm_storeu_ps(at + width, b);
      _mm_storeu_ps(at + 2 * width, c);
      _mm_storeu_ps(at + 3 * width, d);
    }
    for (; k < terms; ++k)
      for (int i = 0; i < 4; ++i) to[k * width + r + i] = widen(from[i][k]);
  }
#endif
  for (; r < rows; ++r) {
    const auto* const from = row(r);
    for (std::int64_t k = 0; k < terms; ++k) to[k * width + r] = widen(from[k]);
  }
}

/// Copies rows of numbers: to[k width + w] = row(k)[w] for w < columns.
template <class Row>
void pack_rows(float* to, std::int64_t width, std::int64_t rows, std::int64_t columns, Row&& row)
{
  const auto copy = [&](auto known) {
    for (std::int64_t k = 0; k < rows; ++k) {
      const auto* const from = row(k);
      float numbers[known];  // in registers
      for (std::int64_t w = 0; w < known; ++w) numbers[w] = widen(from[w]);
      std::memcpy(to + k * width, numbers, sizeof numbers);
    }
  };
  if (columns == tile_rows) return copy(std::integral_constant<std::int64_t, tile_rows>());
  if (columns == tile_columns) return copy(std::integral_constant<std::int64_t, tile_columns>());
  for (std::int64_t k = 0; k < rows; ++k)
    for (std::int64_t w = 0; w < columns; ++w) to[k * width + w] = widen(row(k)[w]);
}

}  // namespace rankwise
