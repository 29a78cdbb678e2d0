#include <algorithm>
#include <cmath>
#include <gpu_instructions.h>
#include <limits>
#include <numbers>

#include "gpt2/kernels/cuda/cuda.hpp"
#include "gpt2/kernels/cuda/packs.hpp"
#include "gpt2/kernels/cuda/reduce.hpp"
#include "gpt2/kernels/cuda/sum_of_terms.hpp"
#include "gpt2/kernels/logit_rows.hpp"

// A row of logits is long, and the logits, (R, V), are the largest tensor of a model. So a block processes one row,
// and reads it as few times as possible.

namespace rankwise {

namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

/// One block for each of R rows, with shared memory to reduce numbers of type T.
template <class T>
Grid block_for_each_row(cudaStream_t stream, std::int64_t R, SourceLocation where = SourceLocation::current())
{
  return {stream, dim3(static_cast<unsigned>(R)), block_threads, most_warps * sizeof(T), where};
}

/// exp(x), by the instruction for powers of two.
__device__ inline float exponential(float x)
{
  return power_of_two(x * std::numbers::log2e_v<float>);
}

/// Calls use(pack) for this thread's packs of a row of @p count elements: every (threads of the block)-th pack. Elements behind
/// the row are -infinity, whose exponential is zero.
template <class T, class Use>
__device__ void for_each_pack_of_row(const T* row, std::int64_t count, Use&& use)
{
  constexpr int N = pack_size<T>;
  for (auto v = N * static_cast<int>(threadIdx.x); v < count; v += N * static_cast<int>(blockDim.x)) {
    Pack<N> pack = load_pack<N>(row + v, count - v);
    if (v + N > count)
      for (int i = 0; i < N; ++i)
        if (v + i >= count) pack.at[i] = minus_infinity;
    use(pack);
  }
}

/// The largest of @p largest and the elements of a pack.
template <int N>
__device__ float maximum_with(float largest, const Pack<N>& pack)
{
  for (const float logit : pack.at) largest = std::fmax(largest, logit);
  return largest;
}

/// The sum of exp(logit - maximum) over the elements of a pack.
template <int N>
__device__ float sum_of_exponentials(const Pack<N>& pack, float maximum)
{
  float sum = 0;
  for (const float logit : pack.at) sum += exponential(logit - maximum);
  return sum;
}

/// Block: one row. Reads the logits once.
template <class T>
__global__ void __launch_bounds__(block_threads)
    find_maximum(float* maximum, const T* logits, std::int64_t valid, std::int64_t V)
{
  constexpr int N = pack_size<T>;
  const std::int64_t r = blockIdx.x;
  float largest = minus_infinity;
  for_each_pack_of_row(logits + r * V, valid, [&](const Pack<N>& pack) { largest = maximum_with(largest, pack); });
  largest = block_reduce(largest, Larger(), &shared_memory<float>());
  if (threadIdx.x == 0) maximum[r] = largest;
}

/// Block: one row. Reads the logits once.
template <class T>
__global__ void __launch_bounds__(block_threads) sum_exponentials(float* target_logit, const LogitRows<T> rows)
{
  constexpr int N = pack_size<T>;
  const std::int64_t r = blockIdx.x;
  const float maximum = rows.maxima[r];
  float mine = 0;
  for_each_pack_of_row(rows.row(r), rows.vocabulary.count,
                       [&](const Pack<N>& pack) { mine += sum_of_exponentials(pack, maximum); });
  mine = block_reduce(mine, Plus(), &shared_memory<float>());
  if (threadIdx.x != 0) return;
  rows.sums[r] = mine;
  target_logit[r] = rows.target_logit(r);
}

}  // namespace

void CudaKernels::row_maximum(const Tensor& maximum, const Tensor& logits, std::int64_t valid) const
{
  const std::int64_t R = maximum.elements();
  if (R == 0) return;
  with_gpu_type(logits.type(), [&]<class T>(T) {
    launch(block_for_each_row<float>(on_, R), find_maximum<T>, maximum.data<float>(), logits.data<T>(), valid,
           logits.elements() / R);
  });
}

void CudaKernels::row_sum(const Tensor& sum, const Tensor& target_logit, const Tensor& logits,
                          const Tensor& maximum, const Tensor& targets, Range vocabulary, const SumOrder&) const
{
  with_gpu_type(logits.type(), [&]<class T>(T) {
    const LogitRows<T> rows(logits, maximum, sum, targets, vocabulary);
    launch(block_for_each_row<float>(on_, rows.R), sum_exponentials<T>, target_logit.data<float>(), rows);
  });
}

namespace {

/// exp(from - to); 1 if both are infinite.
__device__ inline float rescaled(float from, float to)
{
  return from == to ? 1 : exponential(from - to);
}

/// Combines the statistics of two parts of a row: x is the largest logit of a part, y its sum of exp(logit - x).
/// @source  Milakov and Gimelshein 2018.
struct JoinParts {
  __device__ float2 operator()(float2 a, float2 b) const
  {
    const float largest = std::fmax(a.x, b.x);
    return make_float2(largest, a.y * rescaled(a.x, largest) + b.y * rescaled(b.x, largest));
  }
};

/// Block: one row. Reads the logits once. A thread rescales
/// its sum when a pack has a larger logit than those before.
template <class T>
__global__ void __launch_bounds__(block_threads) find_maximum_and_sum(float* target_logit, const LogitRows<T> rows)
{
  constexpr int N = pack_size<T>;
  const std::int64_t r = blockIdx.x;
  float2 part = make_float2(minus_infinity, 0);
  for_each_pack_of_row(rows.row(r), rows.vocabulary.count, [&](const Pack<N>& pack) {
    const float largest = maximum_with(part.x, pack);
    if (largest > part.x) part = make_float2(largest, part.y * rescaled(part.x, largest));
    part.y += sum_of_exponentials(pack, part.x == minus_infinity ? 0 : part.x);
  });
  part = block_reduce(part, JoinParts(), &shared_memory<float2>());
  if (threadIdx.x != 0) return;
  rows.maxima[r] = part.x;
  rows.sums[r] = part.y;
  target_logit[r] = rows.target_logit(r);
}

}  // namespace

void CudaKernels::row_statistics(const Tensor& maximum, const Tensor& sum, const Tensor& target_logit,
                                 const Tensor& logits, const Tensor& targets, Range vocabulary,
                                 const SumOrder&) const
{
  with_gpu_type(logits.type(), [&]<class T>(T) {
    const LogitRows<T> rows(logits, maximum, sum, targets, vocabulary);
    launch(block_for_each_row<float2>(on_, rows.R), find_maximum_and_sum<T>, target_logit.data<float>(), rows);
  });
}

ExactScalar CudaKernels::loss_sum(const Tensor& sum, const Tensor& maximum, const Tensor& target_logit,
                                  const Tensor& targets) const
{
  // Thread: every (threads of the grid)-th row. Reads 16 R bytes.
  const float *const s = sum.data<float>(), *const m = maximum.data<float>(), *const t = target_logit.data<float>();
  const std::int32_t* const target = targets.data<std::int32_t>();
  return sum_of_terms(stream_, on_, scratch_.tensor(), targets.elements(), [=] __device__(std::int64_t r) {
    return target[r] >= 0 ? static_cast<double>(std::log(s[r]) + m[r] - t[r]) : 0.0;
  });
}

namespace {

/// Overwrites the logits with the gradient of @p weight times the loss. Block: one row; thread: every (threads of the
/// block)-th pack, several of them at a time, so that their loads do not wait for each other. Reads and writes the logits.
template <class T>
__global__ void __launch_bounds__(block_threads) subtract_targets(const LogitRows<T> rows, float weight)
{
  constexpr int N = pack_size<T>, together = 4;
  const std::int64_t r = blockIdx.x;
  const auto target = static_cast<int>(rows.target[r] - rows.vocabulary.first), V = static_cast<int>(rows.V);
  const int shown = rows.target[r] >= 0 ? static_cast<int>(rows.vocabulary.count) : 0;
  const int step = N * static_cast<int>(blockDim.x);
  const float maximum = rows.maxima[r], scale = weight / rows.sums[r];
  T* const row = rows.row(r);
  for (auto first = N * static_cast<int>(threadIdx.x); first < V; first += together * step) {
    StoredPack<T> logits[together];
    for (int k = 0; k < together; ++k)
      if (first + k * step < V) logits[k] = StoredPack<T>::load(row + first + k * step, V - (first + k * step));
    for (int k = 0; k < together; ++k) {
      const int v = first + k * step;
      if (v >= V) break;
      Pack<N> pack = logits[k].unpacked();
      for (float& logit : pack.at) logit = exponential(logit - maximum) * scale;
      if (v + N > shown)
        for (int i = 0; i < N; ++i)
          if (v + i >= shown) pack.at[i] = 0;
      if (v <= target && target < v + N && target < shown)
        for (int i = 0; i < N; ++i)
          if (v + i == target) pack.at[i] -= weight;
      store_pack(row + v, pack, V - v);
    }
  }
}

}  // namespace

void CudaKernels::loss_backward(const Tensor& logits, const Tensor& maximum, const Tensor& sum,
                                const Tensor& targets, Range vocabulary, double weight) const
{
  // forward:   loss[r] = log(sum over v of exp(logit[r, v] - maximum[r])) + maximum[r] - logit[r, target[r]]
  // gradient:  dlogit[r, v] = weight (exp(logit[r, v] - maximum[r]) / sum[r] - [v = target[r]])
  with_gpu_type(logits.type(), [&]<class T>(T) {
    const LogitRows<T> rows(logits, maximum, sum, targets, vocabulary);
    launch(block_for_each_row<float>(on_, rows.R), subtract_targets<T>, rows, static_cast<float>(weight));
  });
}

}  // namespace rankwise
