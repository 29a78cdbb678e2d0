#pragma once

#include <cstdint>

#include "common/base/exact_scalar.hpp"
#include "common/memory/device.hpp"
#include "gpt2/kernels/cuda/reduce.hpp"

/// @file
/// A sum over all of a tensor as one number. For .cu files only.

namespace rankwise {

/// sums[block] = sum of the block's terms, in f64. Thread i: terms i, i + threads of the grid, ...
template <class F>
__global__ void sum_terms(double* sums, std::int64_t n, F term)
{
  double sum = 0;
  for (std::int64_t i = thread_number(); i < n; i += thread_count()) sum += term(i);
  sum = block_reduce(sum, Plus(), &shared_memory<double>());
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

/// The sum of term(0) ... term(n - 1): the GPU adds those of each block, the host the blocks'. Waits for it.
/// @param on       CUDA's handle of @p stream.
/// @param scratch  memory of the GPU for the blocks' sums.
/// @param term     a lambda that begins with `[=] __device__` and returns f64.
template <class F>
ExactScalar sum_of_terms(Stream& stream, cudaStream_t on, const Tensor& scratch, std::int64_t n, F term,
                         SourceLocation where = SourceLocation::current())
{
  Grid grid = grid_over(on, n, where);
  grid.shared_bytes = most_warps * bytes_of(DType::f64);
  const Tensor sums(scratch.raw(), DType::f64, {grid.blocks.x});
  launch(grid, sum_terms<F>, sums.data<double>(), n, term);
  ExactScalar total;
  for (const double sum : to_host<double>(stream, sums)) total.add(sum);
  return total;
}

}  // namespace rankwise
