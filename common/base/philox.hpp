#pragma once

#include <array>
#include <cstdint>

/// @file
/// Counter-based random numbers: each depends only on its counter and key, never on which rank draws it or when.

namespace rankwise {

/// The four 32-bit words that one call of philox() gives.
using PhiloxWords = std::array<std::uint32_t, 4>;

/// Philox4x32-10: a bijection of the 128-bit @p counter selected by a 64-bit @p key; it passes all
/// statistical tests of TestU01's BigCrush.
///
/// Two callers who pass the same counter and key get the same four words, on every device and rank.
///
/// @cost    10 rounds of two 32 x 32 -> 64 bit multiplications.
/// @source  Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 4.3.
constexpr PhiloxWords philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key)
{
  constexpr std::uint64_t multiplier_0 = 0xD2511F53, multiplier_1 = 0xCD9E8D57;
  constexpr std::uint32_t weyl_0 = 0x9E3779B9, weyl_1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product_0 = multiplier_0 * counter[0];
    const std::uint64_t product_1 = multiplier_1 * counter[2];
    counter = {
        static_cast<std::uint32_t>(product_1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product_1),
        static_cast<std::uint32_t>(product_0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product_0)};
    key = {key[0] + weyl_0, key[1] + weyl_1};
  }
  return counter;
}

/// A word as a number in the open interval (0, 1): the middle of its cell.
constexpr double uniform(std::uint32_t word)
{
  return (word + 0.5) * 0x1p-32;
}

/// One sample of the standard normal distribution, from two words.
/// @source  Box and Muller 1958, the cosine half.
double normal(std::uint32_t word_0, std::uint32_t word_1);

}  // namespace rankwise
