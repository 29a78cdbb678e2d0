#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <cuda_bf16.h>

#include "common/memory/tensor.hpp"

/// @file
/// Conversion from f32 to bf16 and back, two numbers at a time, by the GPU's instruction. For .cu files only.

namespace rankwise {

/// Two numbers rounded to nearest, ties to even, @p low in the lower half of the word. They have the bits of
/// bf16(float); every NaN becomes 0x7FFF, the value of bf16(float) for the NaN that a GPU's arithmetic returns.
__device__ inline std::uint32_t rounded_pair(float low, float high)
{
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t word = 0;
  std::memcpy(&word, &pair, sizeof word);
  return word;
}

/// One number rounded as rounded_pair() does.
template <class T>
__device__ T rounded_to(float value);
/// Returns an f32 unchanged.
template <>
__device__ inline float rounded_to<float>(float value)
{
  return value;
}
/// Rounds to bf16.
template <>
__device__ inline bf16 rounded_to<bf16>(float value)
{
  bf16 result;
  result.bits = static_cast<std::uint16_t>(rounded_pair(value, 0));
  return result;
}

/// The number in the lower half of a word.
__device__ inline float lower_of(std::uint32_t pair)
{
  return std::bit_cast<float>(pair << 16);
}
/// The number in the upper half of a word.
__device__ inline float upper_of(std::uint32_t pair)
{
  return std::bit_cast<float>(pair & 0xFFFF0000U);
}

}  // namespace rankwise
