#pragma once

#include "common/cuda/cuda.hpp"

/// @file
/// Deterministic sums over the rows of a matrix, without atomic operations.

namespace rankwise {

/// to[j] += sum over rows r of from[r, j], in f32; bf16 results are rounded once.
/// @param to    (columns) f32 or bf16.
/// @param from  (rows, columns) f32: partial sums, a few hundred rows.
void add_partial_sums(cudaStream_t stream, const Tensor& to, const Tensor& from);

/// Adds column sums as add_partial_sums() does, for a matrix with many rows: partial sums of slices of rows first,
/// then the sum of those.
/// @param from     (rows, columns) f32 or bf16.
/// @param scratch  f32, for the partial sums; if it holds fewer than @p columns numbers, there is one stage only.
void add_rows(cudaStream_t stream, const Tensor& to, const Tensor& from, const Tensor& scratch);

}  // namespace rankwise
