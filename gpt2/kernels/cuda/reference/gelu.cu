#include "gpt2/kernels/cuda/reference/reference.hpp"
#include "gpt2/kernels/gelu_formula.hpp"

namespace rankwise {

namespace {

/// A thread has one element of x and y. 12 R n + 4 n bytes move.
void forward(cudaStream_t stream, float* y, float* x, const float* bias, std::int64_t R, std::int64_t n)
{
  for_each_element(stream, R, n, [=] __device__(std::int64_t r, std::int64_t j) {
    float& element = x[r * n + j];
    element += bias[j];
    y[r * n + j] = gelu(element);
  });
}

/// A thread has one element of dx. 12 elements bytes move.
void backward(cudaStream_t stream, float* dx, const float* dy, const float* x, std::int64_t elements)
{
  for_each(stream, elements, [=] __device__(std::int64_t i) { dx[i] = dy[i] * gelu_slope(x[i]); });
}

}  // namespace

void CudaReferenceKernels::bias_gelu_forward(const Tensor& y, const Tensor& x, const Tensor& bias) const
{
  const std::int64_t n = bias.elements();
  forward(gpu(), y.data<float>(), x.data<float>(), bias.data<float>(), x.elements() / n, n);
}

void CudaReferenceKernels::gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x) const
{
  // y = gelu(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  backward(gpu(), dx.data<float>(), dy.data<float>(), x.data<float>(), x.elements());
}

}  // namespace rankwise
