#pragma once

#include <cstdint>
#include <cuda_runtime.h>

#include "common/memory/tensor.hpp"

/// @file
/// Kernels that do with tiles of tensor cores what test_tensor_tiles.cpp does with loops.

namespace rankwise::testing {

/// Lines and columns of the factors.
constexpr int factor_side = 32;

/// The product of two factors by tiles of tensor cores; each is (32, 32) in memory of the GPU.
struct TileProducts {
  const bf16 *a, *b;    ///< the factors
  float* with_lines;    ///< a b', from all columns
  float* with_columns;  ///< a b, from all lines of b
  float* of_product;    ///< bf16(a b') b
  bf16* rounded;        ///< bf16(a b)
};

/// Computes all of them.
void multiply_by_tiles(cudaStream_t stream, const TileProducts& products);

/// to[i] = 2 to the power of from[i], for @p count numbers.
void raise_two(cudaStream_t stream, float* to, const float* from, std::int64_t count);

}  // namespace rankwise::testing
