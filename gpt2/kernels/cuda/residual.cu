#include "gpt2/kernels/cuda/cuda.hpp"
#include "gpt2/kernels/cuda/fours.hpp"

namespace rankwise {

namespace {

/// Thread: four channels of a row. Reads x and y, writes out: 12 R C bytes.
void join(cudaStream_t stream, float* out, const float* x, const float* y, const float* bias, std::int64_t R,
          std::int64_t C, const RowDropout& dropout)
{
  for_each_four(stream, R, C, [=] __device__(const FourPlace& at) {
    Four branch = load_four(y + at.index, at.count);
    const Four shift = load_four(bias + at.channel, at.count), residual = load_four(x + at.index, at.count);
    for (int i = 0; i < 4; ++i) branch.at[i] += shift.at[i];
    dropout.apply(branch, at);
    for (int i = 0; i < 4; ++i) branch.at[i] += residual.at[i];
    store_four(out + at.index, branch, at.count);
  });
}

/// Thread: four channels of a row. Reads dx, writes dy: 8 R C bytes.
void drop(cudaStream_t stream, float* dy, const float* dx, std::int64_t R, std::int64_t C,
          const RowDropout& dropout)
{
  for_each_four(stream, R, C, [=] __device__(const FourPlace& at) {
    Four gradient = load_four(dx + at.index, at.count);
    dropout.apply(gradient, at);
    store_four(dy + at.index, gradient, at.count);
  });
}

}  // namespace

void CudaKernels::residual_forward(const Tensor& out, const Tensor& x, const Tensor& y, const Tensor& bias,
                                   const Dropout& dropout) const
{
  const std::int64_t C = bias.elements();
  join(on_, out.data<float>(), x.data<float>(), y.data<float>(), bias.data<float>(), x.elements() / C, C,
       RowDropout(dropout));
}

void CudaKernels::dropout_backward(const Tensor& dy, const Tensor& dx, const Dropout& dropout) const
{
  // x[r, c] = y[r, c] factor(r, c)
  const std::int64_t R = dropout.rows.count();
  drop(on_, dy.data<float>(), dx.data<float>(), R, dx.elements() / R, RowDropout(dropout));
}

}  // namespace rankwise
