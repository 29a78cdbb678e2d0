#include <algorithm>

#include "gpt2/kernels/cpu/cpu.hpp"
#include "gpt2/kernels/cpu/gemm.hpp"

namespace rankwise {

namespace {

/// A matrix as the library wants it: one of its strides is 1.
GemmOperand operand(const Matrix& matrix)
{
  const bool by_rows = matrix.column_stride == 1;
  check(by_rows || matrix.row_stride == 1,
        "a factor of a matrix product lies in memory neither by rows nor by columns");
  const std::int64_t stride =
      by_rows ? std::max(matrix.row_stride, matrix.columns) : std::max(matrix.column_stride, matrix.rows);
  return {matrix.data.data<float>(), stride, !by_rows};
}

}  // namespace

void CpuKernels::matmul(const Matrix& out, const Matrix& a, const Matrix& b, const SumOrder&, const Tensor& bias,
                        bool accumulate) const
{
  check(out.rows == a.rows && out.columns == b.columns && a.columns == b.rows,
        "the shapes of three matrices do not fit each other");
  float* const to = out.data.data<float>();
  gemm(to, out.row_stride, operand(a), operand(b), out.rows, out.columns, a.columns, 1, accumulate);
  if (bias.empty()) return;
  const float* const shift = bias.data<float>();
#pragma omp parallel for
  for (std::int64_t r = 0; r < out.rows; ++r)
    for (std::int64_t j = 0; j < out.columns; ++j) to[r * out.row_stride + j] += shift[j];
}

void CpuKernels::bias_backward(const Tensor& dbias, const Tensor& dy, const SumOrder&) const
{
  // y[i, j] = x[i, j] + bias[j]
  constexpr std::int64_t stripe = 256;  // columns that are summed side by side
  const float* const from = dy.data<float>();
  float* const to = dbias.data<float>();
  const std::int64_t n = dbias.elements(), R = dy.elements() / n;
#pragma omp parallel for
  for (std::int64_t first = 0; first < n; first += stripe) {
    const std::int64_t last = std::min(first + stripe, n);
    for (std::int64_t r = 0; r < R; ++r)
#pragma omp simd
      for (std::int64_t j = first; j < last; ++j) to[j] += from[r * n + j];
  }
}

}  // namespace rankwise
