#pragma once

#include <cuda_runtime.h>

#include "common/memory/tensor.hpp"

/// @file
/// Element-wise sums of vectors in GPU memory.

namespace rankwise {

/// to += from, enqueued on @p stream. bf16 is added in f32 and rounded to nearest.
/// @param to, from  the same number and type of elements, any type but u8; not overlapping.
void add_on_gpu(cudaStream_t stream, const Tensor& to, const Tensor& from);

}  // namespace rankwise
