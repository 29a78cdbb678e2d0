#pragma once

#include <cmath>

#include "common/cuda/launch.hpp"

/// @file
/// Values of many threads brought together, in the same order each time. For .cu files only.

namespace rankwise {

/// All threads of a warp take part.
constexpr unsigned whole_warp = 0xFFFFFFFF;
/// The most warps that a block may have.
constexpr int most_warps = 32;

/// The value of the thread whose number in the warp differs in the bit @p distance.
__device__ inline float partner(float value, int distance)
{
  return __shfl_xor_sync(whole_warp, value, distance);
}
/// The same of an f64.
__device__ inline double partner(double value, int distance)
{
  return __shfl_xor_sync(whole_warp, value, distance);
}
/// The same of two numbers.
__device__ inline float2 partner(float2 value, int distance)
{
  return make_float2(partner(value.x, distance), partner(value.y, distance));
}

/// f over the values of the @p threads neighbouring threads (2, 4, 8, 16 or 32) to which the caller belongs. All threads
/// of the warp call it. Where f(a, b) and f(b, a) have the same bits, so has the result in all of the threads.
template <class T, class F>
__device__ T warp_reduce(T value, F f, int threads = warp_threads)
{
  for (int distance = threads / 2; distance > 0; distance /= 2) value = f(value, partner(value, distance));
  return value;
}

/// f over the values of all threads of the block, the same bits in all of them. All threads of the block call it.
/// @param room  of the block's shared memory, for most_warps values; may be used again as soon as this returns.
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

/// a + b, as an argument.
struct Plus {
  /// Of f32.
  __device__ float operator()(float a, float b) const { return a + b; }
  /// Of f64.
  __device__ double operator()(double a, double b) const { return a + b; }
  /// Of two numbers each.
  __device__ float2 operator()(float2 a, float2 b) const { return make_float2(a.x + b.x, a.y + b.y); }
};

/// The larger of a and b, as an argument; the other one where one is NaN.
struct Larger {
  /// Of f32.
  __device__ float operator()(float a, float b) const { return std::fmax(a, b); }
};

}  // namespace rankwise
