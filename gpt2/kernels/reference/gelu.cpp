#include <cmath>

#include "gpt2/kernels/gelu_formula.hpp"
#include "gpt2/kernels/reference/reference.hpp"

namespace rankwise {

void ReferenceKernels::bias_gelu_forward(const Tensor& y, const Tensor& x, const Tensor& bias) const
{
  with_real_type(x.type(), [&]<class T>(T) {
    T *const to = y.data<T>(), *const inner = x.data<T>();
    const T* const shift = bias.data<T>();
    const std::int64_t n = bias.elements(), R = x.elements() / n;
#pragma omp parallel for
    for (std::int64_t r = 0; r < R; ++r)
      for (std::int64_t j = 0; j < n; ++j) {
        // x += bias; the backward pass needs the sum, so it is stored.
        T& element = inner[r * n + j];
        element = T(widen(element) + widen(shift[j]));
        // y = gelu(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
        to[r * n + j] = T(gelu(widen(element)));
      }
  });
}

void ReferenceKernels::gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x) const
{
  // forward:   y = gelu(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  // gradient:  dx = dy gelu'(x)
  with_real_type(x.type(), [&]<class T>(T) {
    T* const to = dx.data<T>();
    const T *const from = dy.data<T>(), *const inner = x.data<T>();
#pragma omp parallel for
    for (std::int64_t i = 0; i < x.elements(); ++i) to[i] = T(widen(from[i]) * gelu_slope(widen(inner[i])));
  });
}

void ReferenceKernels::tanh_forward(const Tensor& y, const Tensor& x) const
{
  with_real_type(x.type(), [&]<class T>(T) {
    T* const to = y.data<T>();
    const T* const from = x.data<T>();
#pragma omp parallel for
    for (std::int64_t i = 0; i < x.elements(); ++i) to[i] = T(rounded_tanh(widen(from[i])));
  });
}

void ReferenceKernels::tanh_backward(const Tensor& dx, const Tensor& dy, const Tensor& y) const
{
  // forward:   y = tanh(x)
  // gradient:  dx = dy (1 - y^2)
  with_real_type(y.type(), [&]<class T>(T) {
    T* const to = dx.data<T>();
    const T *const from = dy.data<T>(), *const outer = y.data<T>();
#pragma omp parallel for
    for (std::int64_t i = 0; i < y.elements(); ++i)
      to[i] = T(widen(from[i]) * (1 - widen(outer[i]) * widen(outer[i])));
  });
}

}  // namespace rankwise
