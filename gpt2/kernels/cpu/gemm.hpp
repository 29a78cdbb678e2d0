#pragma once

#include <cstdint>

/// @file
/// The matrix product of a library: oneDNN, or OpenBLAS where that is what there is.

namespace rankwise {

/// A row-major matrix in f32, or the transposed of one.
struct GemmOperand {
  const float* first = nullptr;  ///< its first element
  std::int64_t stride = 0;       ///< elements from one stored row to the next
  bool transposed = false;       ///< whether the factor is the stored matrix with rows and columns exchanged
};

/// out = scale a b, or out += scale a b: (m, n) from (m, k) and (k, n). Threads share the work when this is called
/// outside of a parallel region; inside of one the caller does all of it.
/// @param out         (m, n), row-major.
/// @param out_stride  elements from one row of it to the next.
void gemm(float* out, std::int64_t out_stride, GemmOperand a, GemmOperand b, std::int64_t m, std::int64_t n,
          std::int64_t k, float scale, bool accumulate);

}  // namespace rankwise
