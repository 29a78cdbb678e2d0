#include <cmath>

#include "gpt2/kernels/cuda/reference/ordered_sum.hpp"
#include "gpt2/kernels/cuda/reference/reference.hpp"

namespace rankwise {

namespace {

/// What one norm layer reads, and the normalised element that its backward pass needs.
struct NormView {
  const float *x, *mean, *rstd, *weight;  // (R, C), (R), (R), (C)
  std::int64_t R, C;

  __device__ float normalised(std::int64_t r, std::int64_t c) const { return (x[r * C + c] - mean[r]) * rstd[r]; }
};

/// A thread has one row. 4 (2 R C + 2 R + 2 C) bytes move.
void forward(cudaStream_t stream, float* y, float* mean, float* rstd, const float* x, const float* weight,
             const float* bias, std::int64_t R, std::int64_t C)
{
  for_each(stream, R, [=] __device__(std::int64_t r) {
    const float* const row = x + r * C;
    float sum = 0, squares = 0;
    for (std::int64_t c = 0; c < C; ++c) sum += row[c];
    const float m = sum / static_cast<float>(C);
    for (std::int64_t c = 0; c < C; ++c) squares += (row[c] - m) * (row[c] - m);
    const float s = 1 / std::sqrt(squares / static_cast<float>(C) + static_cast<float>(norm_epsilon));
    for (std::int64_t c = 0; c < C; ++c) y[r * C + c] = (row[c] - m) * s * weight[c] + bias[c];
    mean[r] = m;
    rstd[r] = s;
  });
}

/// A thread has one row of dx. 4 (4 R C + 2 R + C) bytes move.
void input_backward(cudaStream_t stream, float* dx, const float* dy, NormView norm)
{
  for_each(stream, norm.R, [=] __device__(std::int64_t r) {
    const auto C = static_cast<float>(norm.C);
    const auto g = [&](std::int64_t c) { return dy[r * norm.C + c] * norm.weight[c]; };
    float sum = 0, product = 0;
    for (std::int64_t c = 0; c < norm.C; ++c) {
      sum += g(c);
      product += g(c) * norm.normalised(r, c);
    }
    const float mean_g = sum / C, mean_g_xhat = product / C;
    for (std::int64_t c = 0; c < norm.C; ++c)
      dx[r * norm.C + c] += (g(c) - mean_g - norm.normalised(r, c) * mean_g_xhat) * norm.rstd[r];
  });
}

/// A thread has one channel of dweight and dbias. 4 (2 R C + 2 R + 4 C) bytes move.
void parameters_backward(cudaStream_t stream, float* dweight, float* dbias, const float* dy, NormView norm,
                         SumOrder order)
{
  for_each(stream, norm.C, [=] __device__(std::int64_t c) {
    const std::int64_t C = norm.C;
    dweight[c] += ordered_sum(order, [&](std::int64_t r) { return dy[r * C + c] * norm.normalised(r, c); });
    dbias[c] += ordered_sum(order, [&](std::int64_t r) { return dy[r * C + c]; });
  });
}

}  // namespace

void CudaReferenceKernels::norm_forward(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                                        const Tensor& weight, const Tensor& bias) const
{
  const std::int64_t C = weight.elements();
  forward(gpu(), y.data<float>(), mean.data<float>(), rstd.data<float>(), x.data<float>(), weight.data<float>(),
          bias.data<float>(), x.elements() / C, C);
}

void CudaReferenceKernels::norm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias,
                                         const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                                         const Tensor& weight, const SumOrder& order) const
{
  // y[r, c] = xhat[r, c] weight[c] + bias[c] with xhat[r, c] = (x[r, c] - mean[r]) rstd[r]
  const std::int64_t C = weight.elements();
  const NormView norm{x.data<float>(),      mean.data<float>(), rstd.data<float>(),
                      weight.data<float>(), x.elements() / C,   C};
  input_backward(gpu(), dx.data<float>(), dy.data<float>(), norm);
  parameters_backward(gpu(), dweight.data<float>(), dbias.data<float>(), dy.data<float>(), norm, order);
}

}  // namespace rankwise
