#pragma once

#include <cstdint>
#include <string>

#include "common/memory/tensor.hpp"

/// @file
/// Matrix products by a library: oneDNN, or OpenBLAS where oneDNN is not available.

namespace rankwise {

/// A row-major matrix, or the transpose of one.
template <class T>
struct GemmOperand {
  const T* first = nullptr;  ///< its first element
  std::int64_t stride = 0;   ///< elements from one stored row to the next
  bool transposed = false;   ///< true if the factor is the transpose of the stored matrix
};

/// out = a b, or out += a b: (m, n) from (m, k) and (k, n). Outside of a parallel region all threads
/// share the work; inside of one, the calling thread does all of it.
/// @param out         (m, n), row-major.
/// @param out_stride  elements from one row of it to the next.
void gemm(float* out, std::int64_t out_stride, GemmOperand<float> a, GemmOperand<float> b, std::int64_t m,
          std::int64_t n, std::int64_t k, bool accumulate);

/// out = a b + bias, or out += a b + bias, with bf16 factors: products and sums in f32, rounded once if out is
/// bf16. Uses the processor's bf16 instructions if it has some that the library supports (AVX-512 BF16, AMX), else
/// the f32 product above.
/// @param bias  (n), added to every row; may be null.
/// @tparam Out  float or bf16.
template <class Out>
void gemm(Out* out, std::int64_t out_stride, GemmOperand<bf16> a, GemmOperand<bf16> b, std::int64_t m,
          std::int64_t n, std::int64_t k, bool accumulate, const bf16* bias = nullptr);

/// The library, and its version, that multiplies f32.
std::string gemm_library();

}  // namespace rankwise
