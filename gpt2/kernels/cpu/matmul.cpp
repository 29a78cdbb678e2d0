#include <algorithm>
#include <array>

#include "gpt2/kernels/cpu/cpu.hpp"
#include "gpt2/kernels/cpu/gemm.hpp"
#include "gpt2/kernels/cpu/vector_math.hpp"

namespace rankwise {

namespace {

/// A matrix as an operand for the library: one of its strides has to be 1.
template <class T>
GemmOperand<T> operand(const Matrix& matrix)
{
  const bool by_rows = matrix.column_stride == 1;
  check(by_rows || matrix.row_stride == 1, "a factor of a matrix product is stored neither by rows nor by columns");
  const std::int64_t stride =
      by_rows ? std::max(matrix.row_stride, matrix.columns) : std::max(matrix.column_stride, matrix.rows);
  return {matrix.data.data<T>(), stride, !by_rows};
}

/// The product in f32.
void multiply(const Matrix& out, const Matrix& a, const Matrix& b, const Tensor& bias, bool accumulate)
{
  float* const to = out.data.data<float>();
  gemm(to, out.row_stride, operand<float>(a), operand<float>(b), out.rows, out.columns, a.columns, accumulate);
  if (bias.empty()) return;
  const float* const shift = bias.data<float>();
#pragma omp parallel for
  for (std::int64_t r = 0; r < out.rows; ++r)
    for (std::int64_t j = 0; j < out.columns; ++j) to[r * out.row_stride + j] += shift[j];
}

/// The product of bf16 factors, in f32 or bf16.
void multiply_bf16(const Matrix& out, const Matrix& a, const Matrix& b, const Tensor& bias, bool accumulate)
{
  with_fast_type(out.data.type(), [&]<class Out>(Out) {
    gemm(out.data.data<Out>(), out.row_stride, operand<bf16>(a), operand<bf16>(b), out.rows, out.columns, a.columns,
         accumulate, bias.empty() ? nullptr : bias.data<bf16>());
  });
}

}  // namespace

void CpuKernels::matmul(const Matrix& out, const Matrix& a, const Matrix& b, const SumOrder&, const Tensor& bias,
                        bool accumulate) const
{
  check(out.rows == a.rows && out.columns == b.columns && a.columns == b.rows,
        "the shapes of the three matrices do not match");
  if (a.data.type() == DType::bf16)
    multiply_bf16(out, a, b, bias, accumulate);
  else
    multiply(out, a, b, bias, accumulate);
}

namespace {

/// bias_backward() for given types of activations and gradients.
template <class T, class G>
void add_columns(const Tensor& dbias, const Tensor& dy)
{
  constexpr std::int64_t stripe = 256;  // columns that are summed together
  const T* const from = dy.data<T>();
  G* const to = dbias.data<G>();
  const std::int64_t n = dbias.elements(), R = dy.elements() / n;
#pragma omp parallel for
  for (std::int64_t first = 0; first < n; first += stripe) {
    const std::int64_t count = std::min(stripe, n - first);
    std::array<float, stripe> sums;
    for (std::int64_t j = 0; j < count; ++j) sums[static_cast<std::size_t>(j)] = widen(to[first + j]);
    for (std::int64_t r = 0; r < R; ++r)
#pragma omp simd
      for (std::int64_t j = 0; j < count; ++j) sums[static_cast<std::size_t>(j)] += widen(from[r * n + first + j]);
    for (std::int64_t j = 0; j < count; ++j) to[first + j] = narrow<G>(sums[static_cast<std::size_t>(j)]);
  }
}

}  // namespace

void CpuKernels::bias_backward(const Tensor& dbias, const Tensor& dy, const SumOrder&) const
{
  // forward:   y[i, j] = x[i, j] + bias[j]
  // gradient:  dbias[j] += sum over i of dy[i, j]
  with_fast_type(dy.type(), [&]<class T>(T) {
    with_fast_type(dbias.type(), [&]<class G>(G) { add_columns<T, G>(dbias, dy); });
  });
}

}  // namespace rankwise
