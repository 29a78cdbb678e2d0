#include "gpt2/record/condensed.hpp"

#include <bit>
#include <cmath>

namespace rankwise {

namespace {

/// Odd constants with well mixed bits (Steele et al. 2014, SplitMix64).
constexpr std::uint64_t golden = 0x9E3779B97F4A7C15, second = 0xBF58476D1CE4E5B9, third = 0x94D049BB133111EB;

constexpr std::uint64_t mix(std::uint64_t x)
{
  x = (x ^ (x >> 30)) * second;
  return (x ^ (x >> 27)) * third;
}

}  // namespace

Condensed& Condensed::operator+=(const Condensed& other)
{
  digest += other.digest;
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
  std::uint64_t digest = 0;
  double squares = 0, p0 = 0, p1 = 0, p2 = 0, p3 = 0;
#pragma omp simd reduction(+ : digest, squares, p0, p1, p2, p3)
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint64_t place = mix(static_cast<std::uint64_t>(first + i + 1) * golden);
    const float value = values[i] == 0 ? 0.0f : values[i];  // a zero has no sign here
    digest += mix(place ^ std::bit_cast<std::uint32_t>(value));
    const double v = value;
    squares += v * v;
    p0 += (place >> 60 & 1) != 0 ? v : -v;
    p1 += (place >> 61 & 1) != 0 ? v : -v;
    p2 += (place >> 62 & 1) != 0 ? v : -v;
    p3 += (place >> 63 & 1) != 0 ? v : -v;
  }
  return {digest, squares, {p0, p1, p2, p3}};
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
  return {std::bit_cast<std::uint64_t>(number), number * number, {number, number, number, number}};
}

}  // namespace rankwise
