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
    out[i] = T(widened(x[i]) + (widened(y[i]) + widened(bias[c])) * static_cast<float>(mask.factor(r, c)));
  });
}

/// A thread computes one element of y. 8 R C bytes move.
template <class T>
void drop(cudaStream_t stream, T* y, const T* x, std::int64_t R, std::int64_t C, DropoutMask mask)
{
  for_each_element(stream, R, C, [=] __device__(std::int64_t r, std::int64_t c) {
    y[r * C + c] = T(widened(x[r * C + c]) * static_cast<float>(mask.factor(r, c)));
  });
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

}  // namespace rankwise
