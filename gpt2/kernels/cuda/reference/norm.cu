#include <cmath>

#include "gpt2/kernels/cuda/reference/reference.hpp"
#include "gpt2/kernels/ordered_sum.hpp"

namespace rankwise {

namespace {

/// Inputs of one norm layer, and the normalised element xhat that its backward pass needs.
template <class T>
struct NormView {
  const T *x, *weight;       // (R, C), (C)
  const float *mean, *rstd;  // (R)
  std::int64_t R, C;

  __device__ float normalised(std::int64_t r, std::int64_t c) const
  {
    return (widen(x[r * C + c]) - mean[r]) * rstd[r];
  }
};

/// A thread computes one row: y = (x - mean) rstd weight + bias with rstd = 1 / sqrt(variance + epsilon).
/// 4 (2 R C + 2 R + 2 C) bytes move.
template <class T>
void forward(cudaStream_t stream, T* y, float* mean, float* rstd, const T* x, const T* weight, const T* bias,
             std::int64_t R, std::int64_t C, float epsilon)
{
  for_each(stream, R, [=] __device__(std::int64_t r) {
    const T* const row = x + r * C;
    const float sum = interleaved_sum({0, C}, [&](std::int64_t c) { return widen(row[c]); });
    const float m = sum / static_cast<float>(C);
    const float squares =
        interleaved_sum({0, C}, [&](std::int64_t c) { return (widen(row[c]) - m) * (widen(row[c]) - m); });
    const float s = 1 / std::sqrt(squares / static_cast<float>(C) + epsilon);
    for (std::int64_t c = 0; c < C; ++c)
      y[r * C + c] = T((widen(row[c]) - m) * s * widen(weight[c]) + widen(bias[c]));
    mean[r] = m;
    rstd[r] = s;
  });
}

/// A thread computes one row of dx: dx += (g - mean(g) - xhat mean(g xhat)) rstd with g = dy weight.
/// 4 (4 R C + 2 R + C) bytes move.
template <class T>
void input_backward(cudaStream_t stream, T* dx, const T* dy, NormView<T> norm)
{
  for_each(stream, norm.R, [=] __device__(std::int64_t r) {
    const auto C = static_cast<float>(norm.C);
    const auto g = [&](std::int64_t c) { return widen(dy[r * norm.C + c]) * widen(norm.weight[c]); };
    const float mean_g = interleaved_sum({0, norm.C}, g) / C;
    const float mean_g_xhat =
        interleaved_sum({0, norm.C}, [&](std::int64_t c) { return g(c) * norm.normalised(r, c); }) / C;
    for (std::int64_t c = 0; c < norm.C; ++c)
      add_to(dx[r * norm.C + c], (g(c) - mean_g - norm.normalised(r, c) * mean_g_xhat) * norm.rstd[r]);
  });
}

/// A thread computes one channel: dweight += sum over rows of dy xhat, dbias += sum over rows of dy.
/// 4 (2 R C + 2 R + 4 C) bytes move.
template <class To, class T>
void parameters_backward(cudaStream_t stream, To* dweight, To* dbias, const T* dy, NormView<T> norm, SumOrder order)
{
  for_each(stream, norm.C, [=] __device__(std::int64_t c) {
    const std::int64_t C = norm.C;
    add_to(dweight[c],
           ordered_sum(order, [&](std::int64_t r) { return widen(dy[r * C + c]) * norm.normalised(r, c); }));
    add_to(dbias[c], ordered_sum(order, [&](std::int64_t r) { return widen(dy[r * C + c]); }));
  });
}

}  // namespace

void CudaReferenceKernels::norm_forward(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                                        const Tensor& weight, const Tensor& bias, double epsilon) const
{
  const std::int64_t C = weight.elements();
  with_gpu_type(y.type(), [&]<class T>(T) {
    forward(gpu(), y.data<T>(), mean.data<float>(), rstd.data<float>(), x.data<T>(), weight.data<T>(),
            bias.data<T>(), x.elements() / C, C, static_cast<float>(epsilon));
  });
}

void CudaReferenceKernels::norm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias,
                                         const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                                         const Tensor& weight, const SumOrder& order) const
{
  // forward:  y[r, c] = xhat[r, c] weight[c] + bias[c] with xhat[r, c] = (x[r, c] - mean[r]) rstd[r]
  const std::int64_t C = weight.elements();
  with_gpu_type(dx.type(), [&]<class T>(T) {
    const NormView<T> norm{x.data<T>(),        weight.data<T>(), mean.data<float>(),
                           rstd.data<float>(), x.elements() / C, C};
    input_backward(gpu(), dx.data<T>(), dy.data<T>(), norm);
    with_gpu_type(dweight.type(), [&]<class To>(To) {
      parameters_backward(gpu(), dweight.data<To>(), dbias.data<To>(), dy.data<T>(), norm, order);
    });
  });
}

}  // namespace rankwise
