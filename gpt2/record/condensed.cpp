#include "gpt2/record/condensed.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace rankwise {

namespace {

/// Mixes the bits of a word (Wellons 2018, lowbias32).
constexpr std::uint32_t mix(std::uint32_t x)
{
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

/// The number with another sign if the highest bit of @p sign is set.
float with_sign(std::uint32_t number, std::uint32_t sign)
{
  return std::bit_cast<float>(number ^ (sign & 0x80000000u));
}

/// Condenses up to `longest_run` elements. Sums of that many f32 lose nothing that matters.
constexpr std::int64_t longest_run = 1024;
Condensed condense_run(std::uint32_t first, const float* values, std::int64_t n)
{
  std::uint64_t digest = 0, numbers = 0;
  double squares = 0;
  float p0 = 0, p1 = 0, p2 = 0, p3 = 0;
#pragma omp simd reduction(+ : digest, numbers, squares, p0, p1, p2, p3)
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t place = mix(first + static_cast<std::uint32_t>(i));
    const auto bits = std::bit_cast<std::uint32_t>(values[i]);
    const std::uint32_t number = bits == 0x80000000u ? 0u : bits;  // a zero has no sign here
    digest += std::uint64_t{mix(number ^ place)} * (place | 1u);
    numbers += mix(number);
    const double value = values[i];
    squares += value * value;  // in f64, where the square of no f32 is lost
    p0 += with_sign(number, place);
    p1 += with_sign(number, place << 1);
    p2 += with_sign(number, place << 2);
    p3 += with_sign(number, place << 3);
  }
  return {digest, numbers, squares, {p0, p1, p2, p3}};
}

}  // namespace

Condensed& Condensed::operator+=(const Condensed& other)
{
  digest += other.digest;
  numbers += other.numbers;
  squares += other.squares;
  for (std::size_t k = 0; k < projected.size(); ++k) projected[k] += other.projected[k];
  return *this;
}

void Condensed::add_projections(double factor, const Condensed& other)
{
  for (std::size_t k = 0; k < projected.size(); ++k) projected[k] += factor * other.projected[k];
}

double distance(const Condensed& a, const Condensed& b)
{
  double squares = 0;
  for (std::size_t k = 0; k < a.projected.size(); ++k) {
    const double difference = a.projected[k] - b.projected[k];
    squares += difference * difference;
  }
  return std::sqrt(squares / projections);
}

Condensed condense(std::int64_t first, const float* values, std::int64_t n)
{
  Condensed sum;
  for (std::int64_t done = 0; done < n; done += longest_run)
    sum += condense_run(static_cast<std::uint32_t>(first + done), values + done, std::min(n - done, longest_run));
  return sum;
}

Condensed condense(const Piece& piece, const float* values, std::int64_t stride)
{
  Condensed sum;
  for (std::int64_t row = 0; row < piece.rows.count; ++row)
    for (std::int64_t s = 0; s < piece.sections; ++s)
      sum += condense(((piece.rows.first + row) * piece.sections + s) * piece.whole_columns + piece.columns.first,
                      values + row * stride + s * piece.columns.count, piece.columns.count);
  return sum;
}

Condensed condense(double number)
{
  const auto bits = std::bit_cast<std::uint64_t>(number);
  return {bits, bits, number * number, {number, number, number, number}};
}

}  // namespace rankwise
