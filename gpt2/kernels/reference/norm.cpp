#include <cmath>

#include "gpt2/kernels/reference/reference.hpp"

namespace rankwise {

void ReferenceKernels::norm_forward(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                                    const Tensor& weight, const Tensor& bias, double epsilon) const
{
  with_real_type(x.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const T *const from = x.data<T>(), *const w = weight.data<T>(), *const b = bias.data<T>();
    T* const to = y.data<T>();
    A *const means = mean.data<A>(), *const rstds = rstd.data<A>();
    const std::int64_t C = weight.elements(), R = x.elements() / C;
#pragma omp parallel for
    for (std::int64_t r = 0; r < R; ++r) {
      // mean = sum over c of x[c] / C
      const T* const row = from + r * C;
      const A sum = interleaved_sum({0, C}, [&](std::int64_t c) { return widen(row[c]); }),
              m = sum / static_cast<A>(C);
      // rstd = 1 / sqrt(variance + epsilon) with variance = sum over c of (x[c] - mean)^2 / C
      const A squares =
          interleaved_sum({0, C}, [&](std::int64_t c) { return (widen(row[c]) - m) * (widen(row[c]) - m); });
      const A s = 1 / std::sqrt(squares / static_cast<A>(C) + static_cast<A>(epsilon));
      // y[c] = (x[c] - mean) rstd weight[c] + bias[c]
      for (std::int64_t c = 0; c < C; ++c) to[r * C + c] = T((widen(row[c]) - m) * s * widen(w[c]) + widen(b[c]));
      means[r] = m;
      rstds[r] = s;
    }
  });
}

void ReferenceKernels::norm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                                     const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                                     const SumOrder& order) const
{
  // forward:  y[r, c] = xhat[r, c] weight[c] + bias[c] with xhat[r, c] = (x[r, c] - mean[r]) rstd[r]
  with_real_type(x.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const T *const from = x.data<T>(), *const w = weight.data<T>(), *const dy_at = dy.data<T>();
    const A *const means = mean.data<A>(), *const rstds = rstd.data<A>();
    T* const dx_at = dx.data<T>();
    const GradientAccumulator<A> dweight_at(dweight), dbias_at(dbias);
    const std::int64_t C = weight.elements(), R = x.elements() / C;
    const auto xhat = [&](std::int64_t r, std::int64_t c) {
      return (widen(from[r * C + c]) - means[r]) * rstds[r];
    };

    // BEGIN EXERCISE 01.1
    // dx += (g - mean(g) - xhat mean(g xhat)) rstd with g = dy weight: mean and rstd depend on all channels of the
    // row, which gives the two means over the row.
#pragma omp parallel for
    for (std::int64_t r = 0; r < R; ++r) {
      const auto g = [&](std::int64_t c) { return widen(dy_at[r * C + c]) * widen(w[c]); };
      const A sum = interleaved_sum({0, C}, g);
      const A product = interleaved_sum({0, C}, [&](std::int64_t c) { return g(c) * xhat(r, c); });
      const A mean_g = sum / static_cast<A>(C), mean_g_xhat = product / static_cast<A>(C);
      for (std::int64_t c = 0; c < C; ++c)
        dx_at[r * C + c] = T(widen(dx_at[r * C + c]) + (g(c) - mean_g - xhat(r, c) * mean_g_xhat) * rstds[r]);
    }
    // dweight[c] += sum over r of dy[r, c] xhat[r, c], and dbias[c] += sum over r of dy[r, c]
#pragma omp parallel for
    for (std::int64_t j = 0; j < column_blocks(C); ++j) {
      const ColumnBlock block = column_block(j, C);
      const auto weight_sums = sum_rows<A>(
          order, block, [&](std::int64_t r, std::int64_t c) { return widen(dy_at[r * C + c]) * xhat(r, c); });
      const auto bias_sums =
          sum_rows<A>(order, block, [&](std::int64_t r, std::int64_t c) { return widen(dy_at[r * C + c]); });
      for (int i = 0; i < block.count; ++i) {
        dweight_at[block.first + i] += weight_sums.at[static_cast<std::size_t>(i)];
        dbias_at[block.first + i] += bias_sums.at[static_cast<std::size_t>(i)];
      }
    }
    // END EXERCISE
  });
}

}  // namespace rankwise
