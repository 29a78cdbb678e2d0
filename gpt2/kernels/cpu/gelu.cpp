#include <algorithm>
#include <numbers>

#include "gpt2/kernels/cpu/cpu.hpp"
#include "gpt2/kernels/cpu/vector_math.hpp"

namespace rankwise {

namespace {

// (1 + tanh w) / 2 = 1 / (1 + e^-2w) with w = sqrt(2/pi) (x + 0.044715 x^3), so one exponential is enough.
constexpr auto twice_sqrt_2_over_pi = static_cast<float>(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
constexpr float cubic = 0.044715F;

/// e^-2w.
inline float decay(float x)
{
  return exponential(-twice_sqrt_2_over_pi * (x + cubic * x * x * x));
}

}  // namespace

void CpuKernels::bias_gelu_forward(const Tensor& y, const Tensor& x, const Tensor& bias) const
{
  with_fast_type(x.type(), [&]<class T>(T) {
    T *const to = y.data<T>(), *const inner = x.data<T>();
    const T* const shift = bias.data<T>();
    const std::int64_t n = bias.elements(), R = x.elements() / n;
#pragma omp parallel for
    for (std::int64_t r = 0; r < R; ++r) {
      T* const row = inner + r * n;
      fill_row(row, n, [&](std::int64_t j) { return widen(row[j]) + widen(shift[j]); });
      fill_row(to + r * n, n, [&](std::int64_t j) {
        const float u = widen(row[j]);
        return u / (1 + decay(u));
      });
    }
  });
}

void CpuKernels::gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x) const
{
  // forward:   y = x s with s = 1 / (1 + e^-2w)
  // gradient:  dx = dy y' with y' = s + x s', and s' = 2 w' s (1 - s) with 1 - s = e^-2w s
  with_fast_type(x.type(), [&]<class T>(T) {
    T* const to = dx.data<T>();
    const T *const from = dy.data<T>(), *const inner = x.data<T>();
    constexpr std::int64_t length = 16 * share;
#pragma omp parallel for
    for (std::int64_t first = 0; first < x.elements(); first += length) {
      const T *const dy_at = from + first, *const x_at = inner + first;
      const auto gradient = [&](std::int64_t i) {
        const float u = widen(x_at[i]), e = decay(u), s = 1 / (1 + e);
        const float slope = twice_sqrt_2_over_pi * (1 + 3 * cubic * u * u);  // 2 w'
        return widen(dy_at[i]) * (s + u * slope * s * (e * s));
      };
      fill_row(to + first, std::min(length, x.elements() - first), gradient, dy_at, x_at);
    }
  });
}

}  // namespace rankwise
