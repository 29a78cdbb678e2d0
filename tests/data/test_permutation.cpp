#include <cmath>
#include <set>
#include <vector>

#include "common/base/error.hpp"
#include "data/permutation.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

std::vector<std::int64_t> all_of(const Permutation& permutation)
{
  std::vector<std::int64_t> places(static_cast<std::size_t>(permutation.size()));
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = permutation(static_cast<std::int64_t>(i));
  return places;
}

}  // namespace

TEST_CASE("Permutation: takes each of n elements once, for n from 1 to 2000")
{
  for (std::int64_t n = 1; n <= 2000; ++n) {
    std::vector<bool> seen(static_cast<std::size_t>(n), false);
    const Permutation permutation(n, 7, n % 3);
    std::int64_t wrong = 0;
    for (const std::int64_t place : all_of(permutation)) {
      if (place < 0 || place >= n || seen[static_cast<std::size_t>(place)]) {
        ++wrong;
      } else {
        seen[static_cast<std::size_t>(place)] = true;
      }
    }
    if (wrong != 0) FAIL("n = " << n << ": " << wrong << " places are outside or taken twice");
  }
}

TEST_CASE("Permutation: stays one-to-one and inside for large n")
{
  for (const std::int64_t n : {1'000'003LL, (1LL << 32) + 1, 1LL << 40, (1LL << 62) - 57}) {
    const Permutation permutation(n, 3, 0);
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < 20'000; ++i) {
      const std::int64_t place = permutation(n - 1 - i);
      REQUIRE(0 <= place);
      REQUIRE(place < n);
      seen.insert(place);
    }
    CHECK(seen.size() == 20'000);
  }
}

TEST_CASE("Permutation: the same n, seed and epoch give the same order; another seed or epoch another one")
{
  const auto order = all_of(Permutation(1000, 5, 2));
  CHECK(all_of(Permutation(1000, 5, 2)) == order);
  CHECK(all_of(Permutation(1000, 6, 2)) != order);
  CHECK(all_of(Permutation(1000, 5, 3)) != order);
  CHECK(all_of(Permutation(1000, 5 + (1ULL << 32), 2)) != order);
  CHECK(all_of(Permutation(1000, 5, 2 + (1LL << 32))) != order);
}

TEST_CASE("Permutation: each element reaches each place about equally often")
{
  // 10,000 seeds put each of 5 elements at each place 2000 times on average. Chi-square over the 25 cells has (5-1)^2 =
  // 16 degrees of freedom, mean 16 and standard deviation sqrt(32) = 5.7; 16 + 6 * 5.7 = 50 is far out.
  constexpr int n = 5, seeds = 10'000;
  std::vector<double> count(n * n, 0.0);
  for (int seed = 0; seed < seeds; ++seed) {
    const Permutation permutation(n, static_cast<std::uint64_t>(seed), 0);
    for (int i = 0; i < n; ++i) count[static_cast<std::size_t>(i * n + permutation(i))] += 1;
  }
  const double expected = seeds / n;
  double chi_square = 0;
  for (const double c : count) chi_square += (c - expected) * (c - expected) / expected;
  CHECK(chi_square < 50);
}

TEST_CASE("Permutation: neighbours do not stay neighbours")
{
  const Permutation permutation(10'000, 1, 0);
  int together = 0;  // expected: 2 of 10,000 pairs
  for (std::int64_t i = 0; i + 1 < 10'000; ++i) together += std::abs(permutation(i + 1) - permutation(i)) == 1;
  CHECK(together < 15);
}

TEST_CASE("Permutation: an empty range and an index outside are errors")
{
  CHECK_THROWS_AS(Permutation(0, 1, 0), Error);
  CHECK_THROWS_AS(Permutation(4, 1, -1), Error);
  CHECK_THROWS_AS(Permutation(4, 1, 0)(4), Error);
  CHECK_THROWS_AS(Permutation(4, 1, 0)(-1), Error);
}

TEST_CASE("TrainingOrder: steps follow each other through the epochs, each a permutation of its own")
{
  constexpr std::int64_t n = 10, G = 4;
  const TrainingOrder order(n, 5, G);
  CHECK(order.size() == n);
  CHECK(order.steps(1) == 3);
  CHECK(order.steps(2) == 5);
  for (std::int64_t g = 0; g < 3 * n; ++g) CHECK(order.at(g / G, g % G) == Permutation(n, 5, g / n)(g % n));
  CHECK_THROWS_AS(order.at(-1, 0), Error);
  CHECK_THROWS_AS(order.at(0, -1), Error);
  CHECK_THROWS_AS(order.at(0, G), Error);
  CHECK_THROWS_AS(TrainingOrder(n, 5, 0), Error);
}
