#pragma once

#include <cmath>

#include "common/cuda/launch.hpp"

/// @file
/// Deterministic reductions over threads. For .cu files only.

namespace rankwise {

/// Mask of all threads of a warp.
constexpr unsigned whole_warp = 0xFFFFFFFF;
/// Largest number of warps in a block.
constexpr int most_warps = 32;

/// The value of the thread whose number in the warp differs in the bit @p distance.
__device__ inline float partner(float value, int distance)
{
  return __shfl_xor_sync(whole_warp, value, distance);
}
/// partner() of an f64.
__device__ inline double partner(double value, int distance)
{
  return __shfl_xor_sync(whole_warp, value, distance);
}
/// partner() of two numbers.
__device__ inline float2 partner(float2 value, int distance)
{
  return make_float2(partner(value.x, distance), partner(value.y, distance));
}

/// Reduces with f over groups of @p threads neighbouring threads (2, 4, 8, 16 or 32). All threads of the warp call
/// it. If f(a, b) and f(b, a) have the same bits, all threads of a group get the same bits.
template <class T, class F>
__device__ T warp_reduce(T value, F f, int threads = warp_threads)
{
  for (int distance = threads / 2; distance > 0; distance /= 2) value = f(value, partner(value, distance));
  return value;
}

/// Reduces with f over all threads of the block, with the same
/// bits in all of them. All threads of the block call it.
/// @param scratch  shared memory for most_warps values; may be reused as soon as this returns.
template <class T, class F>
__device__ T block_reduce(T value, F f, T* scratch)
{
  const unsigned warp = threadIdx.x / warp_threads, warps = blockDim.x / warp_threads;
  value = warp_reduce(value, f);
  if (threadIdx.x % warp_threads == 0) scratch[warp] = value;
  __syncthreads();
  T all = scratch[0];
  for (unsigned w = 1; w < warps; ++w) all = f(all, scratch[w]);
  __syncthreads();
  return all;
}

/// a + b, as a function object.
struct Plus {
  /// For f32.
  __device__ float operator()(float a, float b) const { return a + b; }
  /// For f64.
  __device__ double operator()(double a, double b) const { return a + b; }
  /// For two numbers.
  __device__ float2 operator()(float2 a, float2 b) const { return make_float2(a.x + b.x, a.y + b.y); }
};

/// The larger of a and b, as a function object; if one of them is NaN, the other one.
struct Larger {
  /// For f32.
  __device__ float operator()(float a, float b) const { return std::fmax(a, b); }
};

}  // namespace rankwise
