#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "common/base/philox.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

TEST_CASE("philox: gives the known answers published with Random123")
{
  STATIC_REQUIRE(philox({0, 0, 0, 0}, {0, 0}) == PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  constexpr std::uint32_t ones = 0xffffffff;
  STATIC_REQUIRE(philox({ones, ones, ones, ones}, {ones, ones}) ==
                 PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  STATIC_REQUIRE(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
                 PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("philox: one bit of counter or key changes about half of the 128 bits")
{
  const std::array<std::uint32_t, 4> counter{7, 0, 123456789, 42};
  const std::array<std::uint32_t, 2> key{1, 2026};
  const PhiloxWords words = philox(counter, key);
  for (std::size_t bit = 0; bit < 192; ++bit) {
    auto other_counter = counter;
    auto other_key = key;
    std::uint32_t& word = bit < 128 ? other_counter[bit / 32] : other_key[bit / 32 - 4];
    word ^= 1u << bit % 32;
    const PhiloxWords other = philox(other_counter, other_key);
    int changed = 0;
    for (std::size_t i = 0; i < 4; ++i) changed += std::popcount(words[i] ^ other[i]);
    // 64 are expected, with a standard deviation of sqrt(128) / 2 = 5.7.
    CHECK(changed > 35);
    CHECK(changed < 93);
  }
}

TEST_CASE("uniform: stays inside (0, 1) for every word, and is symmetric")
{
  STATIC_REQUIRE(uniform(0) == 0x1p-33);
  STATIC_REQUIRE(uniform(0xffffffff) == 1 - 0x1p-33);
  STATIC_REQUIRE(uniform(0x80000000) == 0.5 + 0x1p-33);
  STATIC_REQUIRE(uniform(0x7fffffff) == 0.5 - 0x1p-33);
  STATIC_REQUIRE(uniform(12345) + uniform(~12345u) == 1);
}

TEST_CASE("uniform: words of consecutive counters fill sixteen cells evenly")
{
  std::array<int, 16> cells{};
  constexpr int samples = 160'000;
  for (std::uint32_t i = 0; i < samples / 4; ++i)
    for (const std::uint32_t word : philox({i, 0, 0, 0}, {5, 0}))
      ++cells[static_cast<std::size_t>(uniform(word) * 16)];
  double chi_squared = 0;
  for (const int count : cells) chi_squared += std::pow(count - samples / 16, 2) / (samples / 16);
  CHECK(chi_squared <
        37.7);  // 15 degrees of freedom: exceeded by one generator in a thousand, and the words are fixed
}

TEST_CASE("normal: takes its largest value at the smallest word, and is symmetric")
{
  CHECK(normal(0, 0) == Approx(std::sqrt(66 * std::log(2.0))));  // sqrt(-2 ln 2^-33) = 6.76
  CHECK(normal(0, 0x80000000) == Approx(-std::sqrt(66 * std::log(2.0))));
  CHECK(std::abs(normal(0, 0x40000000)) < 1e-7);
  CHECK(normal(0xffffffff, 0) == Approx(std::sqrt(0x1p-32)));
  CHECK(std::isfinite(normal(0xffffffff, 0xffffffff)));
}

TEST_CASE("normal: has the moments and the tails of the standard normal distribution")
{
  constexpr int samples = 1'000'000;
  std::array<double, 5> moment{};
  std::array<int, 5> beyond{};  // |x| > k
  for (std::uint32_t i = 0; i < samples / 2; ++i) {
    const PhiloxWords words = philox({i, 3, 0, 0}, {2026, 0});
    for (const double x : {normal(words[0], words[1]), normal(words[2], words[3])}) {
      double power = 1.0 / samples;
      for (std::size_t k = 1; k < 5; ++k) {
        moment[k] += power *= x;
        if (std::abs(x) > static_cast<double>(k)) ++beyond[k];
      }
    }
  }
  // Four standard deviations of each estimate: sqrt(1, 2, 15, 96) / 1000.
  CHECK(std::abs(moment[1]) < 0.004);
  CHECK(std::abs(moment[2] - 1) < 0.0057);
  CHECK(std::abs(moment[3]) < 0.0155);
  CHECK(std::abs(moment[4] - 3) < 0.0392);
  constexpr std::array<double, 5> probability{1, 0.317311, 0.0455003, 0.00269980, 0.0000633425};
  for (std::size_t k = 1; k < 5; ++k) {
    const double expected = probability[k] * samples;
    CHECK(std::abs(beyond[k] - expected) < 4 * std::sqrt(expected));
  }
}
