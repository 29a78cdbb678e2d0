#include <cmath>

#include "gpt2/kernels/cuda/reference/reference.hpp"
#include "gpt2/kernels/gelu_formula.hpp"

namespace rankwise {

namespace {

/// A thread computes one element of x and y. 12 R n + 4 n bytes move.
template <class T>
void forward(cudaStream_t stream, T* y, T* x, const T* bias, std::int64_t R, std::int64_t n)
{
  for_each_element(stream, R, n, [=] __device__(std::int64_t r, std::int64_t j) {
    T& element = x[r * n + j];
    element = T(widen(element) + widen(bias[j]));
    y[r * n + j] = T(gelu(widen(element)));
  });
}

/// A thread computes one element of dx. 12 bytes per element move.
template <class T>
void backward(cudaStream_t stream, T* dx, const T* dy, const T* x, std::int64_t elements)
{
  for_each(stream, elements, [=] __device__(std::int64_t i) { dx[i] = T(widen(dy[i]) * gelu_slope(widen(x[i]))); });
}

/// A thread computes one element of y. 8 bytes per element move.
template <class T>
void forward_of_tanh(cudaStream_t stream, T* y, const T* x, std::int64_t elements)
{
  for_each(stream, elements, [=] __device__(std::int64_t i) { y[i] = T(rounded_tanh(widen(x[i]))); });
}

/// A thread computes one element of dx. 12 bytes per element move.
template <class T>
void backward_of_tanh(cudaStream_t stream, T* dx, const T* dy, const T* y, std::int64_t elements)
{
  for_each(stream, elements,
           [=] __device__(std::int64_t i) { dx[i] = T(widen(dy[i]) * (1 - widen(y[i]) * widen(y[i]))); });
}

}  // namespace

void CudaReferenceKernels::bias_gelu_forward(const Tensor& y, const Tensor& x, const Tensor& bias) const
{
  const std::int64_t n = bias.elements();
  with_gpu_type(y.type(),
                [&]<class T>(T) { forward(gpu(), y.data<T>(), x.data<T>(), bias.data<T>(), x.elements() / n, n); });
}

void CudaReferenceKernels::gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x) const
{
  // forward:   y = gelu(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  // gradient:  dx = dy gelu'(x)
  with_gpu_type(dx.type(),
                [&]<class T>(T) { backward(gpu(), dx.data<T>(), dy.data<T>(), x.data<T>(), x.elements()); });
}

void CudaReferenceKernels::tanh_forward(const Tensor& y, const Tensor& x) const
{
  with_gpu_type(y.type(), [&]<class T>(T) { forward_of_tanh(gpu(), y.data<T>(), x.data<T>(), x.elements()); });
}

void CudaReferenceKernels::tanh_backward(const Tensor& dx, const Tensor& dy, const Tensor& y) const
{
  // forward:   y = tanh(x)
  // gradient:  dx = dy (1 - y^2)
  with_gpu_type(y.type(), [&]<class T>(T) {
    backward_of_tanh(gpu(), dx.data<T>(), dy.data<T>(), y.data<T>(), y.elements());
  });
}

}  // namespace rankwise
