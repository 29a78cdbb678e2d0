#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "gpt2/kernels/cpu/vector_math.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

TEST_CASE("exponential: is within 2e-7 of e^x from -87 to 88, and 1 at 0")
{
  constexpr int steps = 2'000'000;
  double worst = 0;
  for (int i = 0; i <= steps; ++i) {
    const float x = -87 + 175 * static_cast<float>(i) / steps;
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(static_cast<double>(exponential(x)) - exact) / exact);
  }
  CHECK(worst < 2e-7);
  CHECK(exponential(0) == 1);
}

TEST_CASE("exponential: beyond its limits it is as at the limits; of NaN it is NaN")
{
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {-87.5F, -1e4F, -1e38F, -infinity}) CHECK(exponential(x) == exponential(-87));
  for (const float x : {88.5F, 1e4F, 1e38F, infinity}) CHECK(exponential(x) == exponential(88));
  CHECK(std::isnormal(exponential(-87)));
  CHECK(std::isnormal(exponential(88)));
  CHECK(std::isnan(exponential(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("largest: finds the largest number wherever it stands, and no less than the one it is given")
{
  for (const std::int64_t n : {0, 1, 15, 16, 17, 50})
    for (std::int64_t at = 0; at < n; ++at) {
      std::vector<float> x(static_cast<std::size_t>(n), -3.0F);
      x[static_cast<std::size_t>(at)] = -2;
      CHECK(largest(x.data(), n, -std::numeric_limits<float>::infinity()) == -2);
      CHECK(largest(x.data(), n, -1) == -1);
    }
  CHECK(largest<float>(nullptr, 0, -1) == -1);
}

TEST_CASE("largest: passes over NaNs")
{
  for (const std::size_t at : {0, 7, 16, 19}) {
    std::vector<float> x(20, -3.0F);
    x[5] = -2;
    x[at] = std::numeric_limits<float>::quiet_NaN();
    CHECK(largest(x.data(), 20, -std::numeric_limits<float>::infinity()) == -2);
  }
}

TEST_CASE("narrow: has the bits of the conversion for every upper half, and around the middle between two numbers")
{
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper)
    for (const std::uint32_t lower : {0x0U, 0x1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      const auto value = std::bit_cast<float>(upper << 16 | lower);
      if (narrow<bf16>(value).bits != bf16(value).bits) FAIL("at " << std::hex << (upper << 16 | lower));
    }
  CHECK(narrow<float>(0.1F) == 0.1F);
}

TEST_CASE("fill_row: has the bits of narrow for every upper half, in rows of any length, and writes no further")
{
  for (const std::size_t n : {1, 15, 16, 17, 255, 256, 257, 1000})
    for (std::uint32_t upper = 0; upper < 0x10000; upper += static_cast<std::uint32_t>(n)) {
      const auto number = [&](std::int64_t i) {
        return std::bit_cast<float>((upper + static_cast<std::uint32_t>(i)) % 0x10000 << 16 | 0x8001U);
      };
      std::vector<bf16> row(n + 1, bf16(7.0F));
      fill_row(row.data(), static_cast<std::int64_t>(n), number);
      for (std::size_t i = 0; i < n; ++i)
        if (row[i].bits != narrow<bf16>(number(static_cast<std::int64_t>(i))).bits) FAIL(n << " from " << upper);
      if (row[n].bits != bf16(7.0F).bits) FAIL("behind the row of " << n);
    }
}
