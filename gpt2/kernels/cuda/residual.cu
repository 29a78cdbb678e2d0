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

/// y = dropout(x). Thread: 16 bytes of a row. Reads x, writes y: two tensors of (R, C).
template <class T>
void drop(cudaStream_t stream, T* y, const T* x, std::int64_t R, std::int64_t C, const RowDropout& dropout)
{
  constexpr int N = pack_size<T>;
  for_each_pack<N>(stream, R, C, [=] __device__(const PackPlace& at) {
    Pack<N> values = load_pack<N>(x + at.index, at.count);
    dropout.apply(values, at);
    store_pack(y + at.index, values, at.count);
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

void CudaKernels::dropout(const Tensor& y, const Tensor& x, const Dropout& dropout) const
{
  // forward:   y[r, c] = factor[r, c] x[r, c]
  // gradient:  dx[r, c] = factor[r, c] dy[r, c]
  const std::int64_t R = dropout.rows.count();
  with_gpu_type(y.type(),
                [&]<class T>(T) { drop(on_, y.data<T>(), x.data<T>(), R, x.elements() / R, RowDropout(dropout)); });
}

}  // namespace rankwise
