#pragma once

#include "common/cuda/cuda.hpp"

/// @file
/// Sums over the rows of a matrix, without atomic operations: the same bits each time.

namespace rankwise {

/// to[j] += the sum over rows r of from[r, j], in f32; a bf16 is rounded once.
/// @param to    (columns) f32 or bf16.
/// @param from  (rows, columns) f32: partial sums, some hundreds of rows.
void add_partial_sums(cudaStream_t stream, const Tensor& to, const Tensor& from);

/// The same of a matrix with many rows: first the sums of some rows each, then their sum.
/// @param from     (rows, columns) f32 or bf16.
/// @param scratch  f32, for the first stage; with room for fewer than @p columns it is one stage after all.
void add_rows(cudaStream_t stream, const Tensor& to, const Tensor& from, const Tensor& scratch);

}  // namespace rankwise
