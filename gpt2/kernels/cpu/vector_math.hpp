#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <type_traits>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#include "common/memory/tensor.hpp"

/// @file
/// The exponential, sums and maxima of a softmax, written so that the compiler vectorises them.

namespace rankwise {

/// Numbers in one or several vector registers. Loops are rounded up to a multiple of it where that is allowed.
constexpr std::int64_t vector_width = 16;

/// @p n rounded up to whole vectors, so that a loop over the result has no remainder.
constexpr std::int64_t whole_vectors(std::int64_t n)
{
  return (n + vector_width - 1) / vector_width * vector_width;
}

/// @p value rounded to T, f32 or bf16, with the bits of T(value); the conversion to bf16 is in a form that the
/// compiler vectorises.
template <class T>
T narrow(float value)
{
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t nearest = (word + 0x7FFFU + ((word >> 16) & 1U)) >> 16, quiet_nan = (word >> 16) | 0x40U;
    T rounded;
    rounded.bits = static_cast<std::uint16_t>((word & 0x7FFFFFFFU) > 0x7F800000U ? quiet_nan : nearest);
    return rounded;
  }
}

/// to[i] = narrow(from[i]) for n numbers, by the processor's own instruction where it has one.
template <class T>
void round_row(T* to, const float* from, std::int64_t n)
{
#ifdef __AVX512BF16__
  if constexpr (std::is_same_v<T, bf16>)
    for (; n >= vector_width; n -= vector_width, to += vector_width, from += vector_width) {
      constexpr int subnormal = 0x20;  // which the instruction takes for zero
      const __m512 x = _mm512_loadu_ps(from);
      if (_mm512_fpclass_ps_mask(x, subnormal) != 0) break;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
    }
#endif
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) to[i] = narrow<T>(from[i]);
}

/// A loop over large arrays asks for this many numbers of each at once, two shares before it reaches them: some processors
/// foresee one array that is read in order, but not several.
constexpr std::int64_t share = 16 * vector_width;

/// Asks for the numbers that follow two shares after @p at.
template <class T>
void prefetch(const T* at)
{
  constexpr std::int64_t line = 64 / sizeof(T);
  for (std::int64_t i = 0; i < share; i += line) __builtin_prefetch(at + 2 * share + i);
}

/// to[i] = narrow(number(i)) for n numbers.
/// @param arrays  n numbers each, which number() reads and which are not in a cache yet.
template <class T, class Number, class... Array>
void fill_row(T* to, std::int64_t n, Number&& number, const Array*... arrays)
{
  std::array<float, share> numbers;  // stay in the first cache until they are rounded
  for (std::int64_t first = 0; first < n; first += share) {
    (prefetch(arrays + first), ...);
    const std::int64_t count = std::min(share, n - first);
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) numbers[static_cast<std::size_t>(i)] = number(first + i);
    round_row(to + first, numbers.data(), count);
  }
}

/// e^x with a relative error of at most 2e-7, without a branch; x is first limited to [-87, 88], where the result
/// is a normal number.
///
/// With n = x / ln 2 rounded and r = x - n ln 2, |r| <= ln 2 / 2: e^x = 2^n e^r. ln 2 is subtracted as two numbers,
/// the first with so few bits that n times it is exact; e^r is its Taylor polynomial of degree 7, whose remainder
/// is 6e-9.
inline float exponential(float x)
{
  constexpr float log2_e = 1.44269504F, ln2_high = 0.693359375F, ln2_low = -2.12194440e-4F;
  constexpr float round_to_integer =
      0x1.8p23F;  // adding it drops the fraction and leaves the integer in the low bits
  constexpr int exponent_bits = 23;
  x = std::min(std::max(x, -87.0F), 88.0F);
  const float shifted = x * log2_e + round_to_integer;
  const float n = shifted - round_to_integer;
  const float r = (x - n * ln2_high) - n * ln2_low;
  float sum = 1.0F / 5040;
  sum = sum * r + 1.0F / 720;
  sum = sum * r + 1.0F / 120;
  sum = sum * r + 1.0F / 24;
  sum = sum * r + 1.0F / 6;
  sum = sum * r + 0.5F;
  sum = sum * r + 1.0F;
  sum = sum * r + 1.0F;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(sum) +
                              (std::bit_cast<std::uint32_t>(shifted) << exponent_bits));
}

/// Combines sixteen numbers to one, as a balanced tree.
template <class Combine>
float combine_lanes(std::array<float, vector_width> lanes, Combine&& combine)
{
#pragma GCC unroll 4
  for (std::size_t half = vector_width / 2; half > 0; half /= 2)
#pragma omp simd
    for (std::size_t w = 0; w < half; ++w) lanes[w] = combine(lanes[w], lanes[w + half]);
  return lanes[0];
}

/// The sum of term(0) ... term(n - 1), added in sixteen lanes; each term is computed once.
template <class Term>
float lane_sum(std::int64_t n, Term&& term)
{
  std::array<float, vector_width> lanes{};
  const std::int64_t whole = n / vector_width * vector_width;
  for (std::int64_t i = 0; i < whole; i += vector_width)
#pragma omp simd
    for (std::int64_t w = 0; w < vector_width; ++w) lanes[static_cast<std::size_t>(w)] += term(i + w);
  for (std::int64_t i = whole; i < n; ++i) lanes[static_cast<std::size_t>(i - whole)] += term(i);
  return combine_lanes(lanes, [](float x, float y) { return x + y; });
}

/// The largest of @p n numbers and @p at_least; NaNs are ignored.
template <class T>
float largest(const T* x, std::int64_t n, float at_least)
{
  const auto larger = [](float kept, float next) { return kept < next ? next : kept; };
  std::array<float, vector_width> lanes;
  lanes.fill(at_least);
  const std::int64_t whole = n / vector_width * vector_width;
  for (std::int64_t i = 0; i < whole; i += vector_width) {
    __builtin_prefetch(x + i + 2 * share);
#pragma omp simd
    for (std::int64_t w = 0; w < vector_width; ++w)
      lanes[static_cast<std::size_t>(w)] = larger(lanes[static_cast<std::size_t>(w)], static_cast<float>(x[i + w]));
  }
  for (std::int64_t i = whole; i < n; ++i)
    lanes[static_cast<std::size_t>(i - whole)] =
        larger(lanes[static_cast<std::size_t>(i - whole)], static_cast<float>(x[i]));
  return combine_lanes(lanes, larger);
}

}  // namespace rankwise
