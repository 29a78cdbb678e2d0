#include "gpt2/kernels/cuda/cuda.hpp"
#include "gpt2/kernels/cuda/fours.hpp"
#include "gpt2/kernels/gelu_formula.hpp"

namespace rankwise {

namespace {

/// Thread: four channels of a row. Reads and writes x, writes y: 12 R n bytes.
void add_bias_and_bend(cudaStream_t stream, float* y, float* x, const float* bias, std::int64_t R, std::int64_t n)
{
  for_each_four(stream, R, n, [=] __device__(const FourPlace& at) {
    Four inner = load_four(x + at.index, at.count), outer{};
    const Four shift = load_four(bias + at.channel, at.count);
    for (int i = 0; i < 4; ++i) {
      inner.at[i] += shift.at[i];
      outer.at[i] = gelu(inner.at[i]);
    }
    store_four(x + at.index, inner, at.count);
    store_four(y + at.index, outer, at.count);
  });
}

/// Thread: four elements. Reads dy and x, writes dx: 12 n bytes.
void multiply_by_slope(cudaStream_t stream, float* dx, const float* dy, const float* x, std::int64_t n)
{
  for_each_four(stream, 1, n, [=] __device__(const FourPlace& at) {
    Four gradient = load_four(dy + at.index, at.count);
    const Four inner = load_four(x + at.index, at.count);
    for (int i = 0; i < 4; ++i) gradient.at[i] *= gelu_slope(inner.at[i]);
    store_four(dx + at.index, gradient, at.count);
  });
}

}  // namespace

void CudaKernels::bias_gelu_forward(const Tensor& y, const Tensor& x, const Tensor& bias) const
{
  const std::int64_t n = bias.elements();
  add_bias_and_bend(on_, y.data<float>(), x.data<float>(), bias.data<float>(), x.elements() / n, n);
}

void CudaKernels::gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x) const
{
  // y = x/2 (1 + t) with t = tanh(sqrt(2/pi) (x + 0.044715 x^3))
  multiply_by_slope(on_, dx.data<float>(), dy.data<float>(), x.data<float>(), x.elements());
}

}  // namespace rankwise
