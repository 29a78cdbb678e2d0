#include "gpt2/kernels/cuda/reference/ordered_sum.hpp"
#include "gpt2/kernels/cuda/reference/reference.hpp"

namespace rankwise {

namespace {

/// A matrix of f32 in a GPU's memory.
struct DeviceMatrix {
  explicit DeviceMatrix(const Matrix& matrix)
      : first(matrix.data.data<float>()), row_stride(matrix.row_stride), column_stride(matrix.column_stride)
  {
  }
  __device__ float& operator()(std::int64_t i, std::int64_t j) const
  {
    return first[i * row_stride + j * column_stride];
  }

  float* first;
  std::int64_t row_stride, column_stride;
};

/// A thread has one element of out. At least 4 (m k + k n + m n) bytes move.
void multiply(cudaStream_t stream, DeviceMatrix out, DeviceMatrix a, DeviceMatrix b, std::int64_t rows,
              std::int64_t columns, SumOrder order, const float* bias, bool accumulate)
{
  for_each_element(stream, rows, columns, [=] __device__(std::int64_t i, std::int64_t j) {
    float sum = ordered_sum(order, [&](std::int64_t k) { return a(i, k) * b(k, j); });
    if (bias != nullptr) sum += bias[j];
    out(i, j) = accumulate ? out(i, j) + sum : sum;
  });
}

/// A thread has one column of dy. 4 (R n + 2 n) bytes move.
void add_rows(cudaStream_t stream, float* dbias, const float* dy, std::int64_t n, SumOrder order)
{
  for_each(stream, n, [=] __device__(std::int64_t j) {
    dbias[j] += ordered_sum(order, [&](std::int64_t r) { return dy[r * n + j]; });
  });
}

}  // namespace

void CudaReferenceKernels::matmul(const Matrix& out, const Matrix& a, const Matrix& b, const SumOrder& order,
                                  const Tensor& bias, bool accumulate) const
{
  check(out.rows == a.rows && out.columns == b.columns && a.columns == b.rows,
        "the shapes of three matrices do not fit each other");
  check(order.terms() == a.columns, "the order of a sum has another number of terms than the contraction");
  multiply(gpu(), DeviceMatrix(out), DeviceMatrix(a), DeviceMatrix(b), out.rows, out.columns, order,
           bias.data<float>(), accumulate);
}

void CudaReferenceKernels::bias_backward(const Tensor& dbias, const Tensor& dy, const SumOrder& order) const
{
  // y[i, j] = x[i, j] + bias[j]
  add_rows(gpu(), dbias.data<float>(), dy.data<float>(), dbias.elements(), order);
}

}  // namespace rankwise
