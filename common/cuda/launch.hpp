#pragma once

#include <algorithm>
#include <cstdint>

#include "common/cuda/cuda.hpp"

/// @file
/// Launching of kernels, and helpers that kernels share. For CUDA source files (.cu) only.

namespace rankwise {

/// Default number of threads per block.
constexpr unsigned block_threads = 256;

/// Threads per warp.
constexpr int warp_threads = 32;

/// Launch configuration of a kernel.
struct Grid {
  cudaStream_t stream;                               ///< stream on which it runs
  dim3 blocks;                                       ///< number of blocks; nothing is launched when it is zero
  unsigned threads = block_threads;                  ///< threads per block
  std::int64_t shared_bytes = 0;                     ///< dynamic shared memory per block
  SourceLocation where = SourceLocation::current();  ///< line that launches it
};

/// Launches @p kernel; the arguments are converted to its parameters' types.
/// @throws Error  with the line of @p grid.
template <class... Parameters, class... Arguments>
void launch(const Grid& grid, void (*kernel)(Parameters...), Arguments... arguments)
{
  constexpr std::int64_t without_asking = 48 << 10;  // bytes of shared memory
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return;
  if (grid.shared_bytes > without_asking)
    check_cuda(
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(grid.shared_bytes)),
        "asking for shared memory", grid.where);
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = dim3(grid.threads);
  config.dynamicSmemBytes = static_cast<std::size_t>(grid.shared_bytes);
  config.stream = grid.stream;
  check_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), "launching a kernel",
             grid.where);
}

/// Dynamic shared memory of the block. Kernels access it through shared_memory().
extern __shared__ __align__(128) unsigned char dynamic_shared_memory[];

/// Dynamic shared memory of the block as one object: a struct of the kernel's tiles, sizeof(T) bytes.
template <class T>
__device__ T& shared_memory()
{
  return *reinterpret_cast<T*>(dynamic_shared_memory);
}

/// Index of this thread among all threads of a one-dimensional grid.
__device__ inline std::int64_t thread_number()
{
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

/// The number of threads of a one-dimensional grid.
__device__ inline std::int64_t thread_count()
{
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

/// n / d, rounded up.
constexpr std::int64_t divided_up(std::int64_t n, std::int64_t d)
{
  return (n + d - 1) / d;
}

/// Grid-stride launch over n elements: enough blocks for n threads, but no more than keep a GPU busy. A thread
/// processes elements thread_number(), thread_number() + thread_count(), ...
inline Grid grid_over(cudaStream_t stream, std::int64_t n, SourceLocation where = SourceLocation::current())
{
  constexpr std::int64_t enough = 4096;  // blocks
  return {stream, dim3(static_cast<unsigned>(std::min(divided_up(n, block_threads), enough))), block_threads, 0,
          where};
}

/// Thread i calls f(i), f(i + thread_count()), ... for arguments below n.
template <class F>
__global__ void call_for_each(std::int64_t n, F f)
{
  for (std::int64_t i = thread_number(); i < n; i += thread_count()) f(i);
}

/// Calls f(0) ... f(n - 1), distributed over the threads of a grid.
/// @param f  a lambda that begins with `[=] __device__`.
template <class F>
void for_each(cudaStream_t stream, std::int64_t n, F f, SourceLocation where = SourceLocation::current())
{
  launch(grid_over(stream, n, where), call_for_each<F>, n, f);
}

}  // namespace rankwise
