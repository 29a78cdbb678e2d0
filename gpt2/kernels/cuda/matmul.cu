#include <algorithm>
#include <limits>

#include "gpt2/kernels/cuda/column_sums.hpp"
#include "gpt2/kernels/cuda/cuda.hpp"
#include "gpt2/kernels/cuda/fours.hpp"

namespace rankwise {

namespace {

/// A number of elements as cuBLAS takes it.
int to_int(std::int64_t n)
{
  check(n <= std::numeric_limits<int>::max(), "a matrix is larger than cuBLAS can count");
  return static_cast<int>(n);
}

/// A factor as cuBLAS wants it, for whom matrices lie in memory column by column: ours, by rows, are transposed to it.
struct Factor {
  const float* first;
  int stride;  // from one stored row of ours, one column of cuBLAS's, to the next
  cublasOperation_t operation;
};

/// The transposed of @p matrix.
Factor transposed_factor(const Matrix& matrix)
{
  const bool by_rows = matrix.column_stride == 1;
  check(by_rows || matrix.row_stride == 1,
        "a factor of a matrix product lies in memory neither by rows nor by columns");
  const std::int64_t stride =
      by_rows ? std::max(matrix.row_stride, matrix.columns) : std::max(matrix.column_stride, matrix.rows);
  return {matrix.data.data<float>(), to_int(std::max<std::int64_t>(stride, 1)),
          by_rows ? CUBLAS_OP_N : CUBLAS_OP_T};
}

/// Thread: four columns of a row. Reads and writes out: 8 m n bytes.
void add_bias(cudaStream_t stream, float* out, std::int64_t row_stride, const float* bias, std::int64_t m,
              std::int64_t n)
{
  for_each_four(stream, m, n, [=] __device__(const FourPlace& at) {
    float* const to = out + at.row * row_stride + at.channel;
    Four sum = load_four(to, at.count);
    const Four shift = load_four(bias + at.channel, at.count);
    for (int i = 0; i < 4; ++i) sum.at[i] += shift.at[i];
    store_four(to, sum, at.count);
  });
}

}  // namespace

void CudaKernels::matmul(const Matrix& out, const Matrix& a, const Matrix& b, const SumOrder&, const Tensor& bias,
                         bool accumulate) const
{
  check(out.rows == a.rows && out.columns == b.columns && a.columns == b.rows,
        "the shapes of three matrices do not fit each other");
  check(out.column_stride == 1, "the rows of a matrix product are not contiguous");
  if (out.rows == 0 || out.columns == 0) return;
  // out' = b' a'
  const Factor left = transposed_factor(b), right = transposed_factor(a);
  const float one = 1, kept = accumulate ? 1 : 0;
  float* const to = out.data.data<float>();
  check_cublas(cublasSgemm(cublas_.handle(), left.operation, right.operation, to_int(out.columns), to_int(out.rows),
                           to_int(a.columns), &one, left.first, left.stride, right.first, right.stride, &kept, to,
                           to_int(std::max(out.row_stride, out.columns))),
               "multiplying matrices");
  if (!bias.empty()) add_bias(on_, to, out.row_stride, bias.data<float>(), out.rows, out.columns);
}

void CudaKernels::bias_backward(const Tensor& dbias, const Tensor& dy, const SumOrder&) const
{
  // y[i, j] = x[i, j] + bias[j]
  const std::int64_t n = dbias.elements();
  const Tensor& scratch = scratch_.tensor();
  add_many_rows(on_, dbias.data<float>(), dy.data<float>(), dy.elements() / n, n, scratch.data<float>(),
                scratch.elements());
}

}  // namespace rankwise
