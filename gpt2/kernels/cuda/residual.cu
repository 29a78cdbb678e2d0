#include "gpt2/kernels/cuda/cuda.hpp"
#include "gpt2/kernels/cuda/packs.hpp"

namespace rankwise {

namespace {

/// out = x + dropout(y + bias). Thread: 16 bytes of a row. Reads x and y, writes out: three tensors of (R, C).
template <class T>
void join(cudaStream_t stream, T* out, const T* x, const T* y, const T* bias, std::int64_t R, std::int64_t C,
          const RowDropout& dropout)
{
  constexpr int N = pack_size<T>;
  for_each_pack<N>(stream, R, C, [=] __device__(const PackPlace& at) {
    Pack<N> branch = load_pack<N>(y + at.index, at.count);
    const Pack<N> residual = load_pack<N>(x + at.index, at.count);
    branch += load_pack<N>(bias + at.channel, at.count);
    dropout.apply(branch, at);
    branch += residual;
    store_pack(out + at.index, branch, at.count);
  });
}

/// dy = dropout(dx). Thread: 16 bytes of a row. Reads dx, writes dy: two tensors of (R, C).
template <class T>
void drop(cudaStream_t stream, T* dy, const T* dx, std::int64_t R, std::int64_t C, const RowDropout& dropout)
{
  constexpr int N = pack_size<T>;
  for_each_pack<N>(stream, R, C, [=] __device__(const PackPlace& at) {
    Pack<N> gradient = load_pack<N>(dx + at.index, at.count);
    dropout.apply(gradient, at);
    store_pack(dy + at.index, gradient, at.count);
  });
}

}  // namespace

void CudaKernels::residual_forward(const Tensor& out, const Tensor& x, const Tensor& y, const Tensor& bias,
                                   const Dropout& dropout) const
{
  const std::int64_t C = bias.elements();
  with_gpu_type(out.type(), [&]<class T>(T) {
    join(on_, out.data<T>(), x.data<T>(), y.data<T>(), bias.data<T>(), x.elements() / C, C, RowDropout(dropout));
  });
}

void CudaKernels::dropout_backward(const Tensor& dy, const Tensor& dx, const Dropout& dropout) const
{
  // forward:   x[r, c] = factor[r, c] y[r, c]
  // gradient:  dy[r, c] = factor[r, c] dx[r, c]
  const std::int64_t R = dropout.rows.count();
  with_gpu_type(dy.type(), [&]<class T>(T) {
    drop(on_, dy.data<T>(), dx.data<T>(), R, dx.elements() / R, RowDropout(dropout));
  });
}

}  // namespace rankwise
