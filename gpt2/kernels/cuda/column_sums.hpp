#pragma once

#include <cstdint>

#include "common/cuda/cuda.hpp"

/// @file
/// Sums over the rows of a matrix, without atomic operations: the same bits each time.

namespace rankwise {

/// to[j] += the sum over rows r of from[r, j].
/// @param to    (columns).
/// @param from  (rows, columns), row-major.
void add_rows(cudaStream_t stream, float* to, const float* from, std::int64_t rows, std::int64_t columns);

/// The same in two stages, where there are many rows: first the sums of some rows each, then their sum.
/// @param scratch  for the first stage.
/// @param room     floats in it; with less than @p columns it is one stage after all.
void add_many_rows(cudaStream_t stream, float* to, const float* from, std::int64_t rows, std::int64_t columns,
                   float* scratch, std::int64_t room);

}  // namespace rankwise
