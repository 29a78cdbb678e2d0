#include "gpt2/kernels/cuda/reference/reference.hpp"
#include "gpt2/kernels/dropout_mask.hpp"

namespace rankwise {

namespace {

/// A thread computes one element of out. 12 R C + 4 C bytes move.
template <class T>
void add_branch(cudaStream_t stream, T* out, const T* x, const T* y, const T* bias, std::int64_t R, std::int64_t C,
                DropoutMask mask)
{
  for_each_element(stream, R, C, [=] __device__(std::int64_t r, std::int64_t c) {
    const std::int64_t i = r * C + c;
    out[i] = T(widen(x[i]) + (widen(y[i]) + widen(bias[c])) * static_cast<float>(mask.factor(r, c)));
  });
}

/// A thread computes one element of y. 8 R C bytes move.
template <class T>
void drop(cudaStream_t stream, T* y, const T* x, std::int64_t R, std::int64_t C, DropoutMask mask)
{
  for_each_element(stream, R, C, [=] __device__(std::int64_t r, std::int64_t c) {
    y[r * C + c] = T(widen(x[r * C + c]) * static_cast<float>(mask.factor(r, c)));
  });
}

/// A thread copies one element.
template <class To, class From>
void copy_elements(cudaStream_t stream, TypedMatrix<To> to, TypedMatrix<From> from, std::int64_t rows,
                   std::int64_t columns)
{
  for_each_element(stream, rows, columns,
                   [=] __device__(std::int64_t i, std::int64_t j) { to(i, j) = To(widen(from(i, j))); });
}

}  // namespace

void CudaReferenceKernels::residual_forward(const Tensor& out, const Tensor& x, const Tensor& y, const Tensor& bias,
                                            const Dropout& dropout) const
{
  const std::int64_t C = bias.elements();
  with_gpu_type(out.type(), [&]<class T>(T) {
    add_branch(gpu(), out.data<T>(), x.data<T>(), y.data<T>(), bias.data<T>(), x.elements() / C, C,
               DropoutMask(dropout));
  });
}

void CudaReferenceKernels::dropout(const Tensor& y, const Tensor& x, const Dropout& dropout) const
{
  // forward:   y[r, c] = factor[r, c] x[r, c]
  // gradient:  dx[r, c] = factor[r, c] dy[r, c]
  const std::int64_t R = dropout.rows.count();
  with_gpu_type(y.type(), [&]<class T>(T) {
    drop(gpu(), y.data<T>(), x.data<T>(), R, x.elements() / R, DropoutMask(dropout));
  });
}

void CudaReferenceKernels::copy(const Matrix& to, const Matrix& from) const
{
  check(to.rows == from.rows && to.columns == from.columns, "a matrix is copied to one of other sizes");
  with_gpu_type(to.data.type(), [&]<class To>(To) {
    with_gpu_type(from.data.type(), [&]<class From>(From) {
      copy_elements(gpu(), TypedMatrix<To>(to), TypedMatrix<From>(from), to.rows, to.columns);
    });
  });
}

}  // namespace rankwise
