#include <cmath>
#include <numbers>

#include "gpt2/kernels/reference/reference.hpp"

namespace rankwise {

namespace {

constexpr double sqrt_2_over_pi = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
constexpr double cubic = 0.044715;

}  // namespace

void ReferenceKernels::bias_gelu_forward(const Tensor& y, const Tensor& x, const Tensor& bias) const
{
  with_real_type(x.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    T *const to = y.data<T>(), *const inner = x.data<T>();
    const T* const shift = bias.data<T>();
    const std::int64_t n = bias.elements(), R = x.elements() / n;
#pragma omp parallel for
    for (std::int64_t r = 0; r < R; ++r)
      for (std::int64_t j = 0; j < n; ++j) {
        T& element = inner[r * n + j];
        element = T(widen(element) + widen(shift[j]));
        const A u = widen(element);
        const A t = std::tanh(A(sqrt_2_over_pi) * (u + A(cubic) * u * u * u));
        to[r * n + j] = T(A(0.5) * u * (1 + t));
      }
  });
}

void ReferenceKernels::gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x) const
{
  // y = x/2 (1 + t) with t = tanh(sqrt(2/pi) (x + 0.044715 x^3))
  with_real_type(x.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    T* const to = dx.data<T>();
    const T *const from = dy.data<T>(), *const inner = x.data<T>();
#pragma omp parallel for
    for (std::int64_t i = 0; i < x.elements(); ++i) {
      const A u = widen(inner[i]);
      const A t = std::tanh(A(sqrt_2_over_pi) * (u + A(cubic) * u * u * u));
      const A dt = (1 - t * t) * A(sqrt_2_over_pi) * (1 + 3 * A(cubic) * u * u);
      to[i] = T(widen(from[i]) * (A(0.5) * (1 + t) + A(0.5) * u * dt));
    }
  });
}

}  // namespace rankwise
