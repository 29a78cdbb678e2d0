#include <algorithm>
#include <cmath>
#include <omp.h>

#include "gpt2/kernels/cpu/cpu.hpp"
#include "gpt2/kernels/cpu/vector_math.hpp"

namespace rankwise {

void CpuKernels::norm_forward(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                              const Tensor& weight, const Tensor& bias, double epsilon) const
{
  const std::int64_t C = weight.elements(), R = x.elements() / C;
  float *const means = mean.data<float>(), *const rstds = rstd.data<float>();
  with_fast_type(x.type(), [&]<class T>(T) {
    const T *const from = x.data<T>(), *const w = weight.data<T>(), *const b = bias.data<T>();
    T* const to = y.data<T>();
#pragma omp parallel for
    for (std::int64_t r = 0; r < R; ++r) {
      const T* const row = from + r * C;
      float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t c = 0; c < C; ++c) sum += widen(row[c]);
      const float m = sum / static_cast<float>(C);
#pragma omp simd reduction(+ : squares)
      for (std::int64_t c = 0; c < C; ++c) squares += (widen(row[c]) - m) * (widen(row[c]) - m);
      const float s = 1 / std::sqrt(squares / static_cast<float>(C) + static_cast<float>(epsilon));
#pragma omp simd
      for (std::int64_t c = 0; c < C; ++c)
        to[r * C + c] = narrow<T>((widen(row[c]) - m) * s * widen(w[c]) + widen(b[c]));
      means[r] = m;
      rstds[r] = s;
    }
  });
}

namespace {

/// One row of norm_backward(): dx += (g - mean(g) - xhat mean(g xhat)) rstd with g = dy weight, and the row's terms
/// of dweight (dy xhat) and dbias (dy).
template <class T>
void norm_row_backward(T* dx, float* dweight, float* dbias, const T* dy, const T* x, float mean, float rstd,
                       const T* weight, std::int64_t C)
{
  const auto g = [&](std::int64_t c) { return widen(dy[c]) * widen(weight[c]); };
  const auto xhat = [&](std::int64_t c) { return (widen(x[c]) - mean) * rstd; };
  float sum = 0, product = 0;
#pragma omp simd reduction(+ : sum, product)
  for (std::int64_t c = 0; c < C; ++c) {
    sum += g(c);
    product += g(c) * xhat(c);
  }
  const float mean_g = sum / static_cast<float>(C), mean_product = product / static_cast<float>(C);
#pragma omp simd
  for (std::int64_t c = 0; c < C; ++c) {
    dx[c] = narrow<T>(widen(dx[c]) + (g(c) - mean_g - xhat(c) * mean_product) * rstd);
    dweight[c] += widen(dy[c]) * xhat(c);
    dbias[c] += widen(dy[c]);
  }
}

/// Adds the sums of all threads to a gradient; they begin @p
/// offset floats after the beginning of each thread's scratch.
void add_threads_sums(const Tensor& gradient, const ThreadScratch& scratch, std::int64_t offset, int threads)
{
  with_fast_type(gradient.type(), [&]<class G>(G) {
    G* const to = gradient.data<G>();
    for (std::int64_t c = 0; c < gradient.elements(); ++c) {
      float sum = widen(to[c]);
      for (int thread = 0; thread < threads; ++thread) sum += scratch.of(thread)[offset + c];
      to[c] = narrow<G>(sum);
    }
  });
}

}  // namespace

void CpuKernels::norm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                               const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                               const SumOrder&) const
{
  const std::int64_t C = weight.elements(), R = x.elements() / C;
  const float *const means = mean.data<float>(), *const rstds = rstd.data<float>();
  scratch_.reserve(2 * C);
  int threads = 1;
  with_fast_type(x.type(), [&]<class T>(T) {
    const T *const dy_at = dy.data<T>(), *const x_at = x.data<T>(), *const w = weight.data<T>();
    T* const dx_at = dx.data<T>();
#pragma omp parallel
    {
#pragma omp single nowait
      threads = omp_get_num_threads();
      float *const my_dweight = scratch_.of(omp_get_thread_num()), *const my_dbias = my_dweight + C;
      std::fill(my_dweight, my_dweight + 2 * C, 0.0F);
#pragma omp for schedule(static)
      for (std::int64_t r = 0; r < R; ++r)
        norm_row_backward(dx_at + r * C, my_dweight, my_dbias, dy_at + r * C, x_at + r * C, means[r], rstds[r], w,
                          C);
    }
  });
  add_threads_sums(dweight, scratch_, 0, threads);
  add_threads_sums(dbias, scratch_, C, threads);
}

}  // namespace rankwise
