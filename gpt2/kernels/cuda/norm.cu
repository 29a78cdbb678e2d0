#include <algorithm>
#include <cmath>

#include "gpt2/kernels/cuda/column_sums.hpp"
#include "gpt2/kernels/cuda/cuda.hpp"
#include "gpt2/kernels/cuda/packs.hpp"
#include "gpt2/kernels/cuda/reduce.hpp"

namespace rankwise {

namespace {

/// A lane's packs of a row of C channels that its warp works on: packs lane, lane + 32, ... The first K of them,
/// 1024 channels of the warp, are read from memory once and
/// stay in registers; later ones are read again, from cache.
template <class T>
class LaneOfRow {
 public:
  static constexpr int N = pack_size<T>;          ///< elements of a pack
  static constexpr int width = warp_threads * N;  ///< channels of one pack in each lane
  static constexpr int K = 1024 / width;          ///< packs in registers

  /// @param row  the row's first channel.
  __device__ LaneOfRow(const T* row, std::int64_t C) : row_(row), C_(C)
  {
    for (int k = 0; k < K; ++k)
      if (channel(k) < C) kept_[k] = StoredPack<T>::load(row + channel(k), C - channel(k));
  }
  /// Calls f(k, channel, pack of row, pack of each other row)
  /// for all packs of the lane; k is the number of the pack.
  template <class F, class... Others>
  __device__ void for_each(F&& f, const Others&... others) const
  {
    for (int k = 0; k < K; ++k)
      if (channel(k) < C_) f(k, channel(k), kept_[k].unpacked(), others.kept_[k].unpacked()...);
    for (int k = K; channel(k) < C_; ++k) f(k, channel(k), load(channel(k)), others.load(channel(k))...);
  }

 private:
  __device__ static std::int64_t channel(int k) { return k * width + threadIdx.x % warp_threads * N; }
  __device__ Pack<N> load(std::int64_t channel) const { return load_pack<N>(row_ + channel, C_ - channel); }

  const T* row_;
  std::int64_t C_;
  StoredPack<T> kept_[K];
};

/// Inputs of norm_forward().
template <class T>
struct ForwardInputs {
  const T *x, *weight, *bias;
  std::int64_t R, C;
  float epsilon;
};

/// y = (x - mean) rstd weight + bias with rstd = 1 / sqrt(variance + epsilon). Warp: one row. Reads x, writes y:
/// two tensors of (R, C).
template <class T>
__global__ void __launch_bounds__(block_threads)
    normalise(T* y, float* mean, float* rstd, const ForwardInputs<T> in)
{
  constexpr int N = LaneOfRow<T>::N;
  const std::int64_t r = thread_number() / warp_threads, C = in.C;
  if (r >= in.R) return;
  const LaneOfRow<T> row(in.x + r * C, C);
  float sum = 0, squares = 0;
  row.for_each([&](int, std::int64_t, const Pack<N>& x) {
    for (int i = 0; i < N; ++i) sum += x.at[i];
  });
  const float m = warp_reduce(sum, Plus()) / static_cast<float>(C);
  row.for_each([&](int, std::int64_t c, const Pack<N>& x) {
    for (int i = 0; i < N; ++i) squares += c + i < C ? (x.at[i] - m) * (x.at[i] - m) : 0;
  });
  const float variance = warp_reduce(squares, Plus()) / static_cast<float>(C);
  const float s = 1 / std::sqrt(variance + in.epsilon);
  row.for_each([&](int, std::int64_t c, Pack<N> x) {
    const Pack<N> weight = load_pack<N>(in.weight + c, C - c), bias = load_pack<N>(in.bias + c, C - c);
    for (int i = 0; i < N; ++i) x.at[i] = (x.at[i] - m) * s * weight.at[i] + bias.at[i];
    store_pack(y + r * C + c, x, C - c);
  });
  if (threadIdx.x % warp_threads == 0) {
    mean[r] = m;
    rstd[r] = s;
  }
}

}  // namespace

void CudaKernels::norm_forward(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                               const Tensor& weight, const Tensor& bias, double epsilon) const
{
  constexpr std::int64_t rows_of_block = block_threads / warp_threads;
  const std::int64_t C = weight.elements(), R = x.elements() / C;
  with_gpu_type(y.type(), [&]<class T>(T) {
    launch({on_, dim3(static_cast<unsigned>(divided_up(R, rows_of_block)))}, normalise<T>, y.data<T>(),
           mean.data<float>(), rstd.data<float>(),
           ForwardInputs<T>{x.data<T>(), weight.data<T>(), bias.data<T>(), R, C, static_cast<float>(epsilon)});
  });
}

namespace {

/// Inputs of norm_backward_kernel().
template <class T>
struct BackwardInputs {
  const T *dy, *x, *weight;
  const float *mean, *rstd;
  std::int64_t R, C;
};

/// The sums of a warp over its rows, in shared memory: element i of pack k of a lane is at (k, i, lane), so that
/// there are no bank conflicts. No lane reads another lane's sums until all rows are done.
template <int N>
struct SumsOfWarp {
  /// Number of floats for C channels.
  static constexpr std::int64_t padded(std::int64_t C)
  {
    return divided_up(C, N * warp_threads) * N * warp_threads;
  }
  /// Position of the sum of a channel.
  static constexpr std::int64_t place_of(std::int64_t c)
  {
    return (c / (N * warp_threads) * N + c % N) * warp_threads + c / N % warp_threads;
  }
};

/// dx += (g - mean(g) - xhat mean(g xhat)) rstd with g = dy weight, and the block's partial sums over its rows:
/// dweight[block, c] = sum of dy xhat, dbias[block, c] = sum of dy.
///
/// Warp i of all warps: rows i, i + warps, ..., one after the other. Reads dy, x and dx, writes dx: four tensors of
/// (R, C).
template <class T>
__global__ void __launch_bounds__(block_threads)
    norm_backward_kernel(T* dx, float* dweight, float* dbias, const BackwardInputs<T> in)
{
  using Row = LaneOfRow<T>;
  constexpr int N = Row::N;
  const unsigned lane = threadIdx.x % warp_threads, warps = blockDim.x / warp_threads;
  const std::int64_t C = in.C, padded = SumsOfWarp<N>::padded(C);
  float* const sums = &shared_memory<float>();  // (warps, 2, padded)
  float *const dweight_sum = sums + threadIdx.x / warp_threads * 2 * padded, *const dbias_sum =
                                                                                 dweight_sum + padded;
  for (std::int64_t i = lane; i < 2 * padded; i += warp_threads) dweight_sum[i] = 0;
  for (std::int64_t r = thread_number() / warp_threads; r < in.R; r += thread_count() / warp_threads) {
    const Row dy_row(in.dy + r * C, C), x_row(in.x + r * C, C), dx_row(dx + r * C, C);
    const float mean = in.mean[r], rstd = in.rstd[r];
    float2 both = make_float2(0, 0);  // sums of g = dy weight, and of g xhat
    dy_row.for_each(
        [&](int k, std::int64_t c, const Pack<N>& dy, const Pack<N>& x) {
          const Pack<N> weight = load_pack<N>(in.weight + c, C - c);
          for (int i = 0; i < N; ++i) {
            const float g = dy.at[i] * weight.at[i], xhat = (x.at[i] - mean) * rstd;
            both = Plus()(both, make_float2(g, g * xhat));
            dweight_sum[(k * N + i) * warp_threads + lane] += dy.at[i] * xhat;
            dbias_sum[(k * N + i) * warp_threads + lane] += dy.at[i];
          }
        },
        x_row);
    both = warp_reduce(both, Plus());
    const float mean_g = both.x / static_cast<float>(C), mean_g_xhat = both.y / static_cast<float>(C);
    dy_row.for_each(
        [&](int, std::int64_t c, const Pack<N>& dy, const Pack<N>& x, Pack<N> sum) {
          const Pack<N> weight = load_pack<N>(in.weight + c, C - c);
          for (int i = 0; i < N; ++i)
            sum.at[i] += (dy.at[i] * weight.at[i] - mean_g - (x.at[i] - mean) * rstd * mean_g_xhat) * rstd;
          store_pack(dx + r * C + c, sum, C - c);
        },
        x_row, dx_row);
  }
  __syncthreads();
  for (std::int64_t c = threadIdx.x; c < C; c += blockDim.x) {
    float2 all = make_float2(0, 0);
    for (unsigned w = 0; w < warps; ++w) {
      const float* const from = sums + w * 2 * padded + SumsOfWarp<N>::place_of(c);
      all = Plus()(all, make_float2(from[0], from[padded]));
    }
    dweight[blockIdx.x * C + c] = all.x;
    dbias[blockIdx.x * C + c] = all.y;
  }
}

}  // namespace

void CudaKernels::norm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                                const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                                const SumOrder&) const
{
  // forward:  y[r, c] = xhat[r, c] weight[c] + bias[c] with xhat[r, c] = (x[r, c] - mean[r]) rstd[r]
  constexpr std::int64_t enough = 512;              // blocks
  constexpr std::int64_t shared_bytes = 160 << 10;  // limit of a block on every GPU from sm_80
  const std::int64_t C = weight.elements(), R = x.elements() / C;
  if (R == 0) return;
  with_gpu_type(dx.type(), [&]<class T>(T) {
    const std::int64_t bytes_of_warp = 2 * SumsOfWarp<pack_size<T>>::padded(C) * bytes_of(DType::f32);
    const std::int64_t warps = std::clamp<std::int64_t>(shared_bytes / bytes_of_warp, 1, 4);
    const std::int64_t blocks = std::min({divided_up(R, warps), enough, scratch_.tensor().elements() / (2 * C)});
    check(blocks > 0, "a norm has more channels than the scratch memory of kernels holds");
    const Tensor dweights = scratch_.tensor().slice({0, blocks * C});
    const Tensor dbiases = scratch_.tensor().slice({blocks * C, blocks * C});
    launch({on_, dim3(static_cast<unsigned>(blocks)), static_cast<unsigned>(warps * warp_threads),
            warps * bytes_of_warp},
           norm_backward_kernel<T>, dx.data<T>(), dweights.data<float>(), dbiases.data<float>(),
           BackwardInputs<T>{dy.data<T>(), x.data<T>(), weight.data<T>(), mean.data<float>(), rstd.data<float>(), R,
                             C});
    add_partial_sums(on_, dweight, dweights);
    add_partial_sums(on_, dbias, dbiases);
  });
}

}  // namespace rankwise
