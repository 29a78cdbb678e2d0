#include <algorithm>
#include <cmath>

#include "gpt2/kernels/cuda/column_sums.hpp"
#include "gpt2/kernels/cuda/cuda.hpp"
#include "gpt2/kernels/cuda/reduce.hpp"

namespace rankwise {

namespace {

/// Warp: one row; its lane i has channels i, i + 32, ... Reads x, writes y: 8 R C bytes. A row is read three times, twice
/// of them from cache.
__global__ void __launch_bounds__(block_threads)
    normalise(float* y, float* mean, float* rstd, const float* x, const float* weight, const float* bias,
              std::int64_t R, std::int64_t C)
{
  const std::int64_t r = thread_number() / warp_threads;
  const unsigned lane = threadIdx.x % warp_threads;
  if (r >= R) return;
  const float* const row = x + r * C;
  float sum = 0, squares = 0;
  for (std::int64_t c = lane; c < C; c += warp_threads) sum += row[c];
  const float m = warp_reduce(sum, Plus()) / static_cast<float>(C);
  for (std::int64_t c = lane; c < C; c += warp_threads) squares += (row[c] - m) * (row[c] - m);
  const float variance = warp_reduce(squares, Plus()) / static_cast<float>(C);
  const float s = 1 / std::sqrt(variance + static_cast<float>(norm_epsilon));
  for (std::int64_t c = lane; c < C; c += warp_threads) y[r * C + c] = (row[c] - m) * s * weight[c] + bias[c];
  if (lane == 0) {
    mean[r] = m;
    rstd[r] = s;
  }
}

}  // namespace

void CudaKernels::norm_forward(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                               const Tensor& weight, const Tensor& bias) const
{
  constexpr std::int64_t rows_of_block = block_threads / warp_threads;
  const std::int64_t C = weight.elements(), R = x.elements() / C;
  launch({on_, dim3(static_cast<unsigned>(divided_up(R, rows_of_block)))}, normalise, y.data<float>(),
         mean.data<float>(), rstd.data<float>(), x.data<float>(), weight.data<float>(), bias.data<float>(), R, C);
}

namespace {

/// What norm_backward() reads.
struct NormInputs {
  const float *dy, *x, *mean, *rstd, *weight;
  std::int64_t R, C;
};

/// What a block of go_back() keeps; C numbers each of sums of dy xhat and of dy follow it.
struct NormTile {
  float2 room[most_warps];

  __device__ float* sums() { return reinterpret_cast<float*>(this + 1); }
};

/// dx += ..., and the sums of the block's rows into dweight[block, c] and dbias[block, c].
///
/// Block i: rows i, i + blocks, ..., one after the other. Thread: every (threads of the block)-th channel, the same in each
/// row, so that nobody else touches its sums. Reads dy, x and dx, writes dx: 16 R C bytes; the second time from cache.
__global__ void __launch_bounds__(block_threads)
    go_back(float* dx, float* dweight, float* dbias, const NormInputs in)
{
  auto& tile = shared_memory<NormTile>();
  float *const dweight_sum = tile.sums(), *const dbias_sum = dweight_sum + in.C;
  for (std::int64_t c = threadIdx.x; c < in.C; c += blockDim.x) dweight_sum[c] = dbias_sum[c] = 0;
  for (std::int64_t r = blockIdx.x; r < in.R; r += gridDim.x) {
    const float *const dy = in.dy + r * in.C, *const x = in.x + r * in.C;
    const float mean = in.mean[r], rstd = in.rstd[r];
    float2 sums = make_float2(0, 0);  // of g = dy weight, and of g xhat
    for (std::int64_t c = threadIdx.x; c < in.C; c += blockDim.x) {
      const float g = dy[c] * in.weight[c], xhat = (x[c] - mean) * rstd;
      sums = Plus()(sums, make_float2(g, g * xhat));
      dweight_sum[c] += dy[c] * xhat;
      dbias_sum[c] += dy[c];
    }
    sums = block_reduce(sums, Plus(), tile.room);
    const float mean_g = sums.x / static_cast<float>(in.C), mean_g_xhat = sums.y / static_cast<float>(in.C);
    for (std::int64_t c = threadIdx.x; c < in.C; c += blockDim.x) {
      const float xhat = (x[c] - mean) * rstd;
      dx[r * in.C + c] += (dy[c] * in.weight[c] - mean_g - xhat * mean_g_xhat) * rstd;
    }
  }
  for (std::int64_t c = threadIdx.x; c < in.C; c += blockDim.x) {
    dweight[blockIdx.x * in.C + c] = dweight_sum[c];
    dbias[blockIdx.x * in.C + c] = dbias_sum[c];
  }
}

}  // namespace

void CudaKernels::norm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                                const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                                const SumOrder&) const
{
  // y[r, c] = xhat[r, c] weight[c] + bias[c] with xhat[r, c] = (x[r, c] - mean[r]) rstd[r]
  constexpr std::int64_t enough = 512;  // blocks
  const std::int64_t C = weight.elements(), R = x.elements() / C;
  if (R == 0) return;
  const std::int64_t blocks = std::min({R, enough, scratch_.tensor().elements() / (2 * C)});
  check(blocks > 0, "more channels than the scratch of kernels has room for");
  float *const dweights = scratch_.tensor().data<float>(), *const dbiases = dweights + blocks * C;
  const NormInputs inputs{
      dy.data<float>(), x.data<float>(), mean.data<float>(), rstd.data<float>(), weight.data<float>(), R, C};
  launch({on_, dim3(static_cast<unsigned>(blocks)), block_threads,
          static_cast<std::int64_t>(sizeof(NormTile)) + 2 * C * bytes_of(DType::f32)},
         go_back, dx.data<float>(), dweights, dbiases, inputs);
  add_rows(on_, dweight.data<float>(), dweights, blocks, C);
  add_rows(on_, dbias.data<float>(), dbiases, blocks, C);
}

}  // namespace rankwise
