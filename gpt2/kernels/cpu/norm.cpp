#include <algorithm>
#include <cmath>
#include <omp.h>

#include "gpt2/kernels/cpu/cpu.hpp"

namespace rankwise {

void CpuKernels::norm_forward(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                              const Tensor& weight, const Tensor& bias) const
{
  const float *const from = x.data<float>(), *const w = weight.data<float>(), *const b = bias.data<float>();
  float *const to = y.data<float>(), *const means = mean.data<float>(), *const rstds = rstd.data<float>();
  const std::int64_t C = weight.elements(), R = x.elements() / C;
#pragma omp parallel for
  for (std::int64_t r = 0; r < R; ++r) {
    const float* const row = from + r * C;
    float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t c = 0; c < C; ++c) sum += row[c];
    const float m = sum / static_cast<float>(C);
#pragma omp simd reduction(+ : squares)
    for (std::int64_t c = 0; c < C; ++c) squares += (row[c] - m) * (row[c] - m);
    const float s = 1 / std::sqrt(squares / static_cast<float>(C) + static_cast<float>(norm_epsilon));
#pragma omp simd
    for (std::int64_t c = 0; c < C; ++c) to[r * C + c] = (row[c] - m) * s * w[c] + b[c];
    means[r] = m;
    rstds[r] = s;
  }
}

namespace {

/// One row of norm_backward(): dx += ..., and the row's terms of dweight and dbias.
void norm_row_backward(float* dx, float* dweight, float* dbias, const float* dy, const float* x, float mean,
                       float rstd, const float* weight, std::int64_t C)
{
  const auto g = [&](std::int64_t c) { return dy[c] * weight[c]; };
  const auto xhat = [&](std::int64_t c) { return (x[c] - mean) * rstd; };
  float sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
  for (std::int64_t c = 0; c < C; ++c) {
    sum += g(c);
    product += g(c) * xhat(c);
  }
  const float mean_g = sum / static_cast<float>(C), mean_product = product / static_cast<float>(C);
#pragma omp simd
  for (std::int64_t c = 0; c < C; ++c) {
    dx[c] += (g(c) - mean_g - xhat(c) * mean_product) * rstd;
    dweight[c] += dy[c] * xhat(c);
    dbias[c] += dy[c];
  }
}

}  // namespace

void CpuKernels::norm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                               const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                               const SumOrder&) const
{
  const std::int64_t C = weight.elements(), R = x.elements() / C;
  const float *const dy_at = dy.data<float>(), *const x_at = x.data<float>(), *const w = weight.data<float>();
  const float *const means = mean.data<float>(), *const rstds = rstd.data<float>();
  float *const dx_at = dx.data<float>(), *const dweight_at = dweight.data<float>(),
               *const dbias_at = dbias.data<float>();
  scratch_.reserve(2 * C);
#pragma omp parallel
  {
    float *const my_dweight = scratch_.of(omp_get_thread_num()), *const my_dbias = my_dweight + C;
    std::fill(my_dweight, my_dweight + 2 * C, 0.0F);
#pragma omp for schedule(static)
    for (std::int64_t r = 0; r < R; ++r)
      norm_row_backward(dx_at + r * C, my_dweight, my_dbias, dy_at + r * C, x_at + r * C, means[r], rstds[r], w, C);
#pragma omp for
    for (std::int64_t c = 0; c < C; ++c)
      for (int thread = 0; thread < omp_get_num_threads(); ++thread) {
        dweight_at[c] += scratch_.of(thread)[c];
        dbias_at[c] += scratch_.of(thread)[C + c];
      }
  }
}

}  // namespace rankwise
