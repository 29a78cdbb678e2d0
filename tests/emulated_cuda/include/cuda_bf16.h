#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

/// @file
/// The part of CUDA's bf16 that Rankwise uses, on the CPU.

/// Two bf16, as their bits.
struct __nv_bfloat162 {
  std::uint16_t x;  ///< first, in the lower half of a word
  std::uint16_t y;  ///< second
};

namespace emulated_cuda {

/// The bits of @p value as bf16: rounded to nearest, ties to even; every NaN becomes 0x7FFF.
inline std::uint16_t bf16_bits(float value)
{
  if (std::isnan(value)) return 0x7FFF;
  std::uint32_t word = 0;
  std::memcpy(&word, &value, sizeof word);
  const std::uint32_t below = word & 0xFFFFU, even = (word >> 16) & 1U;
  return static_cast<std::uint16_t>((word >> 16) + (below + even > 0x8000U ? 1U : 0U));
}

}  // namespace emulated_cuda

/// Rounds two f32.
inline __nv_bfloat162 __floats2bfloat162_rn(float first, float second)
{
  return {emulated_cuda::bf16_bits(first), emulated_cuda::bf16_bits(second)};
}
