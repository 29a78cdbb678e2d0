#pragma once

#include <cuda_runtime.h>

#include "common/memory/tensor.hpp"

/// @file
/// Sums of vectors in a GPU's memory, element by element.

namespace rankwise {

/// to += from, when its turn comes in @p stream. bf16 is added in f32 and rounded to nearest.
/// @param to, from  as many elements of the same type, all but u8; not overlapping.
void add_on_gpu(cudaStream_t stream, const Tensor& to, const Tensor& from);

}  // namespace rankwise
