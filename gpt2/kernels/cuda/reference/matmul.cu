#include "gpt2/kernels/cuda/reference/reference.hpp"
#include "gpt2/kernels/ordered_sum.hpp"

namespace rankwise {

namespace {

/// A thread computes one element of out, (sum over k of a[i, k] b[k, j]) + bias[j]. At least 4 (m k + k n + m n)
/// bytes move.
template <class O, class T>
void multiply(cudaStream_t stream, TypedMatrix<O> out, TypedMatrix<T> a, TypedMatrix<T> b, std::int64_t rows,
              std::int64_t columns, SumOrder order, const T* bias, bool accumulate)
{
  for_each_element(stream, rows, columns, [=] __device__(std::int64_t i, std::int64_t j) {
    float sum = ordered_sum(order, [&](std::int64_t k) { return Factors<float>{widen(a(i, k)), widen(b(k, j))}; });
    if (bias != nullptr) sum += widen(bias[j]);
    out(i, j) = O(accumulate ? widen(out(i, j)) + sum : sum);
  });
}

/// A thread adds one column of dy. 4 (R n + 2 n) bytes move.
template <class To, class From>
void add_rows(cudaStream_t stream, To* dbias, const From* dy, std::int64_t n, SumOrder order)
{
  for_each(stream, n, [=] __device__(std::int64_t j) {
    add_to(dbias[j], ordered_sum(order, [&](std::int64_t r) { return widen(dy[r * n + j]); }));
  });
}

}  // namespace

void CudaReferenceKernels::matmul(const Matrix& out, const Matrix& a, const Matrix& b, const SumOrder& order,
                                  const Tensor& bias, bool accumulate) const
{
  check(out.rows == a.rows && out.columns == b.columns && a.columns == b.rows,
        "the shapes of the three matrices do not match");
  check(order.terms() == a.columns, "the order of a sum has another number of terms than the contraction");
  with_gpu_type(a.data.type(), [&]<class T>(T) {
    const T* const shift = bias.empty() ? nullptr : bias.data<T>();
    with_gpu_type(out.data.type(), [&]<class O>(O) {
      multiply(gpu(), TypedMatrix<O>(out), TypedMatrix<T>(a), TypedMatrix<T>(b), out.rows, out.columns, order,
               shift, accumulate);
    });
  });
}

void CudaReferenceKernels::bias_backward(const Tensor& dbias, const Tensor& dy, const SumOrder& order) const
{
  // forward:   y[i, j] = x[i, j] + bias[j]
  // gradient:  dbias[j] += sum over i of dy[i, j]
  with_gpu_type(dbias.type(), [&]<class To>(To) {
    with_gpu_type(dy.type(), [&]<class From>(From) {
      add_rows(gpu(), dbias.data<To>(), dy.data<From>(), dbias.elements(), order);
    });
  });
}

}  // namespace rankwise
