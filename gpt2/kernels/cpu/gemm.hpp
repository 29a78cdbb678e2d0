#pragma once

#include <cstdint>

#include "common/memory/tensor.hpp"

/// @file
/// The matrix product of a library: oneDNN, or OpenBLAS where that is what there is.

namespace rankwise {

/// A row-major matrix, or the transposed of one.
template <class T>
struct GemmOperand {
  const T* first = nullptr;  ///< its first element
  std::int64_t stride = 0;   ///< elements from one stored row to the next
  bool transposed = false;   ///< whether the factor is the stored matrix with rows and columns exchanged
};

/// out = scale a b, or out += scale a b: (m, n) from (m, k) and (k, n). Threads share the work when this is called
/// outside of a parallel region; inside of one the caller does all of it.
/// @param out         (m, n), row-major.
/// @param out_stride  elements from one row of it to the next.
void gemm(float* out, std::int64_t out_stride, GemmOperand<float> a, GemmOperand<float> b, std::int64_t m,
          std::int64_t n, std::int64_t k, float scale, bool accumulate);

/// out = a b + bias, or out += a b + bias, of bf16 factors: products and sums in f32, rounded once where out is bf16. By the bf16 instructions of the processor where it has some that the library knows (AVX-512 BF16, AMX),
/// else by the product of f32 above.
/// @param bias  (n), added to every row; may be null.
/// @tparam Out  float or bf16.
template <class Out>
void gemm(Out* out, std::int64_t out_stride, GemmOperand<bf16> a, GemmOperand<bf16> b, std::int64_t m,
          std::int64_t n, std::int64_t k, bool accumulate, const bf16* bias = nullptr);

}  // namespace rankwise
