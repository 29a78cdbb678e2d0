#pragma once

#include <cmath>
#include <cuda_pipeline_primitives.h>
#include <tensor_cores.h>

/// @file
/// Takes the place of the header of this name that has the instructions of a GPU, gpt2/kernels/cuda/instructions; what each
/// does is said there.

namespace rankwise {

/// ldmatrix.
template <bool transposed>
void load_matrices(unsigned (&to)[4], const void* line)
{
  emulated_cuda::load_matrices(to, *static_cast<const unsigned(*)[4]>(line), transposed);
}

/// mma, twice.
inline void multiply_matrices(float (&sums)[2][2][2], const unsigned (&left)[4], const unsigned (&right)[4])
{
  emulated_cuda::multiply_matrices(sums, left, right);
}

/// cp.async of 16 bytes.
inline void copy_piece(void* to, const void* from, bool here)
{
  __pipeline_memcpy_async(to, from, 16, here ? 0 : 16);
}
/// cp.async of 4 bytes.
inline void copy_number(float* to, const float* from, bool here)
{
  __pipeline_memcpy_async(to, from, sizeof(float), here ? 0 : sizeof(float));
}

/// ex2.
inline float power_of_two(float x)
{
  return std::exp2(x);
}

}  // namespace rankwise
