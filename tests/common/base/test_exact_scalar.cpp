#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "common/base/exact_scalar.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

ExactScalar sum_of(const std::vector<double>& terms, std::size_t first = 0, std::size_t stride = 1)
{
  ExactScalar sum;
  for (std::size_t i = first; i < terms.size(); i += stride) sum.add(terms[i]);
  return sum;
}

ExactScalar::Lanes operator+(ExactScalar::Lanes a, const ExactScalar::Lanes& b)
{
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

/// Terms of both signs with exponents from @p smallest to @p largest, all bits of the mantissa in use.
std::vector<double> wild_terms(std::size_t count, int smallest, int largest, std::uint64_t seed)
{
  std::mt19937_64 random(seed);
  std::vector<double> terms;
  for (std::size_t i = 0; i < count; ++i) {
    const double mantissa = 1 + static_cast<double>(random() >> 12) * 0x1p-52;
    const int exponent = smallest + static_cast<int>(random() % static_cast<std::uint64_t>(largest - smallest + 1));
    terms.push_back(std::ldexp(random() % 2 == 0 ? mantissa : -mantissa, exponent));
  }
  return terms;
}

bool same_bits(double a, double b)
{
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("ExactScalar: a sum of nothing is zero, and a sum of one term is the term")
{
  CHECK(same_bits(ExactScalar().value(), 0));
  CHECK(ExactScalar().lanes() == ExactScalar::Lanes{0, 0, 0, 0});
  for (const double term : {1.0, -1.0, 0.1, -5.545177444479562, 7e13, -7e13, 0x1p46 - 0x1p-6, 0x1p-80, -0x1p-80,
                            0x1.fffffffffffffp-28, 0x1.0000000000001p-28})
    CHECK(same_bits(sum_of({term}).value(), term));
}

TEST_CASE("ExactScalar: any order gives the same bits")
{
  std::vector<double> terms = wild_terms(2000, -75, 45, 1);
  const ExactScalar::Lanes expected = sum_of(terms).lanes();
  std::mt19937 random(2);
  for (int trial = 0; trial < 20; ++trial) {
    std::shuffle(terms.begin(), terms.end(), random);
    REQUIRE(sum_of(terms).lanes() == expected);
  }
}

TEST_CASE("ExactScalar: any split over ranks, added lane by lane, gives the same bits")
{
  const std::vector<double> terms = wild_terms(3000, -75, 45, 3);
  const ExactScalar whole = sum_of(terms);
  for (const std::size_t ranks : {1u, 2u, 3u, 4u, 7u, 64u, 1000u}) {
    ExactScalar::Lanes total{};
    ExactScalar added;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      total = total + sum_of(terms, rank, ranks).lanes();
      added += sum_of(terms, rank, ranks);
    }
    CHECK(same_bits(ExactScalar::from_lanes(total).value(), whole.value()));
    CHECK(ExactScalar::from_lanes(total).lanes() == whole.lanes());
    CHECK(added.lanes() == whole.lanes());
  }
}

TEST_CASE("ExactScalar: 1000 ranks whose lanes are all full add up without a carry between lanes")
{
  // -2^-80 has all bits set in the two lower lanes; so has a sum just below a multiple of 2^16.
  for (const double term : {-0x1p-80, 0x1p46 - 0x1p6, -0x1p46 + 0x1p6}) {
    ExactScalar::Lanes total{};
    for (int rank = 0; rank < 1000; ++rank) total = total + sum_of({term, term, -0x1p-80}).lanes();
    const ExactScalar sum = ExactScalar::from_lanes(total);
    CHECK(sum.value() == 2000 * term - 1000 * 0x1p-80);
    ExactScalar again = sum;
    for (int rank = 0; rank < 1000; ++rank) {
      again.add(0x1p-80);
      again.add(-term);
      again.add(-term);
    }
    CHECK(again.value() == 0);
  }
}

TEST_CASE("ExactScalar: terms that cancel leave exactly zero, and all others are kept to the last unit")
{
  CHECK(sum_of({1e13, 0x1p-80, -1e13}).value() == 0x1p-80);
  CHECK(sum_of({-1e13, -0x1p-80, 1e13}).value() == -0x1p-80);
  CHECK(sum_of({0.1, 0.2, 0.3, -0.3, -0.2, -0.1}).value() == 0);
  CHECK(same_bits(sum_of({-1.5, 1.5}).value(), 0));
  std::vector<double> terms = wild_terms(500, -28, 45, 4);  // multiples of 2^-80
  for (const double term : wild_terms(500, -28, 45, 4)) terms.push_back(-term);
  CHECK(sum_of(terms).lanes() == ExactScalar::Lanes{});
}

TEST_CASE("ExactScalar: a term is rounded to the nearest multiple of 2^-80, ties to even")
{
  constexpr double unit = 0x1p-80;
  CHECK(sum_of({0.49999999999999994 * unit}).value() == 0);
  CHECK(sum_of({-0.49999999999999994 * unit}).value() == 0);
  CHECK(sum_of({0.75 * unit}).value() == unit);
  CHECK(sum_of({-0.75 * unit}).value() == -unit);
  CHECK(sum_of({0.5 * unit}).value() == 0);
  CHECK(sum_of({1.5 * unit}).value() == 2 * unit);
  CHECK(sum_of({2.5 * unit}).value() == 2 * unit);
  CHECK(sum_of({-2.5 * unit}).value() == -2 * unit);
  CHECK(sum_of({1e-300, std::numeric_limits<double>::denorm_min(), -0.0}).value() == 0);
  // Odd multiples with 53 bits: to add a half before cutting off would round a second time.
  constexpr double odd = (0x1p52 + 1) * unit;
  CHECK(sum_of({odd}).value() == odd);
  CHECK(sum_of({-odd}).value() == -odd);
  CHECK(sum_of({odd, 1.0, -1.0}).value() == odd);
}

TEST_CASE("ExactScalar: the value is the sum rounded once, whatever its magnitude")
{
  constexpr double unit = 0x1p-80;
  CHECK(sum_of({1.0, 0x1p-53}).value() == 1.0);                  // tie, to even
  CHECK(sum_of({1.0, 0x1p-53, unit}).value() == 1.0 + 0x1p-52);  // just above it
  CHECK(sum_of({1.0, 0x1p-53, -unit}).value() == 1.0);           // just below it
  CHECK(sum_of({-1.0, -0x1p-53, -unit}).value() == -1.0 - 0x1p-52);
  // The same for sums beyond the largest term: 16 times 2^45 is 2^49, whose neighbour is 2^-3 away.
  std::vector<double> large(16, 0x1p45);
  CHECK(sum_of(large).value() == 0x1p49);
  large.push_back(0x1p-4);
  CHECK(sum_of(large).value() == 0x1p49);
  large.push_back(unit);
  CHECK(sum_of(large).value() == 0x1p49 + 0x1p-3);
  for (double& term : large) term = -term;
  CHECK(sum_of(large).value() == -0x1p49 - 0x1p-3);
}

TEST_CASE("ExactScalar: sums may exceed the largest term, up to 2^78, in any order")
{
  // 2^47 and 2^48 in units of 2^-80 are where 128-bit integers wrap.
  for (const int count : {2, 3, 4, 5, 8, 100}) {
    const std::vector<double> terms(static_cast<std::size_t>(count), 0x1p45);
    CHECK(sum_of(terms).value() == count * 0x1p45);
    CHECK(ExactScalar::from_lanes(sum_of(terms).lanes()).value() == count * 0x1p45);
  }
  ExactScalar sum = sum_of({0x1p45});
  for (int exponent = 46; exponent < 78; ++exponent) {
    const ExactScalar twice = sum;
    sum += twice;
    REQUIRE(sum.value() == std::ldexp(1.0, exponent));
    REQUIRE(ExactScalar::from_lanes(sum.lanes()).value() == sum.value());
  }
  for (int exponent = 78; exponent < 84; ++exponent) {
    const ExactScalar twice = sum;
    sum += twice;
    CHECK(std::isnan(sum.value()));
    CHECK(std::isnan(ExactScalar::from_lanes(sum.lanes()).value()));
  }
}

TEST_CASE("ExactScalar: a term that is not finite or too large makes the sum NaN for good")
{
  for (const double term : {not_a_number, infinity, -infinity, 0x1p46, -0x1p46, 1e300}) {
    ExactScalar sum = sum_of({1.0, term, -1.0});
    CHECK(std::isnan(sum.value()));
    sum.add(-term);
    CHECK(std::isnan(sum.value()));
    ExactScalar other = sum_of({2.0});
    other += sum;
    CHECK(std::isnan(other.value()));
    const ExactScalar::Lanes total = sum_of({3.0}).lanes() + sum.lanes() + sum_of({4.0}).lanes();
    CHECK(std::isnan(ExactScalar::from_lanes(total).value()));
  }
}

TEST_CASE("ExactScalar: is as accurate as a long double that adds small terms first")
{
  SECTION("losses")
  {
    std::mt19937_64 random(5);
    std::vector<double> losses;
    for (int i = 0; i < 100'000; ++i) losses.push_back(static_cast<double>(random() >> 11) * 0x1p-50);
    long double expected = 0;
    for (const double loss : losses) expected += loss;  // 50 + 17 bits: 64 hold all but the last few
    CHECK(sum_of(losses).value() == Approx(static_cast<double>(expected)).epsilon(1e-15));
  }
  SECTION("squares of gradients of every size")
  {
    std::vector<double> squares = wild_terms(20'000, -30, 10, 6);
    for (double& term : squares) term *= term;
    std::sort(squares.begin(), squares.end());
    long double expected = 0;
    for (const double square : squares) expected += square;
    CHECK(sum_of(squares).value() == Approx(static_cast<double>(expected)).epsilon(1e-15));
  }
}
