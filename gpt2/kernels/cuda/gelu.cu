#include <cmath>
#include <numbers>

#include "gpt2/kernels/cuda/cuda.hpp"
#include "gpt2/kernels/cuda/packs.hpp"

namespace rankwise {

namespace {

constexpr float two_sqrt_2_over_pi = static_cast<float>(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);

/// (1 + tanh(u))/2 with u = sqrt(2/pi) (x + 0.044715 x^3), as 1 / (1 + exp(-2u)): for negative x the sum would cancel.
__device__ inline float gate(float x)
{
  return 1 / (1 + std::exp(-two_sqrt_2_over_pi * (x + 0.044715f * x * x * x)));
}

/// The derivative of gelu(x) = x gate(x): g + x g (1 - g) 2u' with g = gate(x).
__device__ inline float slope(float x)
{
  const float g = gate(x);
  return g + x * g * (1 - g) * two_sqrt_2_over_pi * (1 + 3 * 0.044715f * x * x);
}

/// x += bias, y = gelu(x). Thread: 16 bytes of a row. Reads and writes x, writes y: three tensors of (R, n).
template <class T>
void add_bias_and_bend(cudaStream_t stream, T* y, T* x, const T* bias, std::int64_t R, std::int64_t n)
{
  constexpr int N = pack_size<T>;
  for_each_pack<N>(stream, R, n, [=] __device__(const PackPlace& at) {
    Pack<N> inner = load_pack<N>(x + at.index, at.count), outer{};
    inner += load_pack<N>(bias + at.channel, at.count);
    for (int i = 0; i < N; ++i) outer.at[i] = inner.at[i] * gate(inner.at[i]);
    store_pack(x + at.index, inner, at.count);
    store_pack(y + at.index, outer, at.count);
  });
}

/// dx = dy gelu'(x). Thread: 16 bytes. Reads dy and x, writes dx: three tensors of n.
template <class T>
void multiply_by_slope(cudaStream_t stream, T* dx, const T* dy, const T* x, std::int64_t n)
{
  constexpr int N = pack_size<T>;
  for_each_pack<N>(stream, 1, n, [=] __device__(const PackPlace& at) {
    Pack<N> gradient = load_pack<N>(dy + at.index, at.count);
    const Pack<N> inner = load_pack<N>(x + at.index, at.count);
    for (int i = 0; i < N; ++i) gradient.at[i] *= slope(inner.at[i]);
    store_pack(dx + at.index, gradient, at.count);
  });
}

}  // namespace

void CudaKernels::bias_gelu_forward(const Tensor& y, const Tensor& x, const Tensor& bias) const
{
  const std::int64_t n = bias.elements();
  with_gpu_type(y.type(), [&]<class T>(T) {
    add_bias_and_bend(on_, y.data<T>(), x.data<T>(), bias.data<T>(), x.elements() / n, n);
  });
}

void CudaKernels::gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x) const
{
  // forward:  y = x gate(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  with_gpu_type(dx.type(),
                [&]<class T>(T) { multiply_by_slope(on_, dx.data<T>(), dy.data<T>(), x.data<T>(), x.elements()); });
}

}  // namespace rankwise
