#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "gpt2/kernels/cuda/cuda.hpp"
#include "gpt2/kernels/cuda/packs.hpp"
#include "gpt2/kernels/cuda/reduce.hpp"

// A row of logits is long, and the logits, (R, V), are the largest tensor of a model. So a block processes one row,
// and reads it as few times as possible.

namespace rankwise {

namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

/// The logits of the rows of a softmax, and the statistics of each row.
template <class T>
struct LogitRows {
  LogitRows(const Tensor& logits, const Tensor& maximum, const Tensor& targets, Range entries)
      : first(logits.data<T>()),
        maxima(maximum.data<float>()),
        target(targets.data<std::int32_t>()),
        vocabulary(entries),
        R(targets.elements()),
        V(R > 0 ? logits.elements() / R : 0)
  {
  }
  /// The target's logit; zero when it is in another vocabulary shard.
  __device__ float target_logit(std::int64_t r) const
  {
    return vocabulary.contains(target[r]) ? static_cast<float>(first[r * V + target[r] - vocabulary.first]) : 0;
  }

  T* first;
  float* maxima;
  const std::int32_t* target;
  Range vocabulary;  // vocabulary entries of this shard, without padding
  std::int64_t R, V;
};

/// One block for each of R rows, with shared memory to reduce numbers of type T.
template <class T>
Grid block_for_each_row(cudaStream_t stream, std::int64_t R, SourceLocation where = SourceLocation::current())
{
  return {stream, dim3(static_cast<unsigned>(R)), block_threads, most_warps * sizeof(T), where};
}

/// exp(x), by the instruction for powers of two.
__device__ inline float exponential(float x)
{
  return std::exp2(x * std::numbers::log2e_v<float>);
}

/// Calls use(pack, number of valid elements) for this thread's
/// packs of a row: every (threads of the block)-th pack.
template <class T, class Use>
__device__ void for_each_pack_of_row(const T* row, std::int64_t count, Use&& use)
{
  constexpr int N = pack_size<T>;
  for (std::int64_t v = N * threadIdx.x; v < count; v += N * blockDim.x)
    use(load_pack<N>(row + v, count - v), static_cast<int>(std::min<std::int64_t>(N, count - v)));
}

/// The largest of @p largest and the first @p count elements of a pack.
template <int N>
__device__ float maximum_with(float largest, const Pack<N>& pack, int count)
{
  for (int i = 0; i < N; ++i)
    if (i < count) largest = std::fmax(largest, pack.at[i]);
  return largest;
}

/// The sum of exp(logit - maximum) over the first @p count elements of a pack.
template <int N>
__device__ float sum_of_exponentials(const Pack<N>& pack, int count, float maximum)
{
  float sum = 0;
  for (int i = 0; i < N; ++i)
    if (i < count) sum += exponential(pack.at[i] - maximum);
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
  for_each_pack_of_row(logits + r * V, valid,
                       [&](const Pack<N>& pack, int count) { largest = maximum_with(largest, pack, count); });
  largest = block_reduce(largest, Larger(), &shared_memory<float>());
  if (threadIdx.x == 0) maximum[r] = largest;
}

/// Block: one row. Reads the logits once.
template <class T>
__global__ void __launch_bounds__(block_threads)
    sum_exponentials(float* sum, float* target_logit, const LogitRows<T> rows)
{
  constexpr int N = pack_size<T>;
  const std::int64_t r = blockIdx.x;
  const float maximum = rows.maxima[r];
  float mine = 0;
  for_each_pack_of_row(rows.first + r * rows.V, rows.vocabulary.count,
                       [&](const Pack<N>& pack, int count) { mine += sum_of_exponentials(pack, count, maximum); });
  mine = block_reduce(mine, Plus(), &shared_memory<float>());
  if (threadIdx.x != 0) return;
  sum[r] = mine;
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
    const LogitRows<T> rows(logits, maximum, targets, vocabulary);
    launch(block_for_each_row<float>(on_, rows.R), sum_exponentials<T>, sum.data<float>(),
           target_logit.data<float>(), rows);
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
__global__ void __launch_bounds__(block_threads)
    find_maximum_and_sum(float* sum, float* target_logit, const LogitRows<T> rows)
{
  constexpr int N = pack_size<T>;
  const std::int64_t r = blockIdx.x;
  float2 part = make_float2(minus_infinity, 0);
  for_each_pack_of_row(rows.first + r * rows.V, rows.vocabulary.count, [&](const Pack<N>& pack, int count) {
    const float largest = maximum_with(part.x, pack, count);
    if (largest > part.x) part = make_float2(largest, part.y * rescaled(part.x, largest));
    part.y += sum_of_exponentials(pack, count, part.x == minus_infinity ? 0 : part.x);
  });
  part = block_reduce(part, JoinParts(), &shared_memory<float2>());
  if (threadIdx.x != 0) return;
  rows.maxima[r] = part.x;
  sum[r] = part.y;
  target_logit[r] = rows.target_logit(r);
}

}  // namespace

void CudaKernels::row_statistics(const Tensor& maximum, const Tensor& sum, const Tensor& target_logit,
                                 const Tensor& logits, const Tensor& targets, Range vocabulary,
                                 const SumOrder&) const
{
  with_gpu_type(logits.type(), [&]<class T>(T) {
    const LogitRows<T> rows(logits, maximum, targets, vocabulary);
    launch(block_for_each_row<float2>(on_, rows.R), find_maximum_and_sum<T>, sum.data<float>(),
           target_logit.data<float>(), rows);
  });
}

namespace {

/// losses[r] = cross-entropy of row r, or zero if the row is not counted. Thread: one row. Moves 20 R bytes.
void write_losses(cudaStream_t stream, float* losses, const float* sum, const float* maximum,
                  const float* target_logit, const std::int32_t* target, std::int64_t R)
{
  for_each(stream, R, [=] __device__(std::int64_t r) {
    losses[r] = target[r] >= 0 ? std::log(sum[r]) + maximum[r] - target_logit[r] : 0;
  });
}

}  // namespace

ExactScalar CudaKernels::loss_sum(const Tensor& sum, const Tensor& maximum, const Tensor& target_logit,
                                  const Tensor& targets) const
{
  const std::int64_t R = targets.elements(), rows_at_a_time = scratch_.tensor().elements();
  ExactScalar total;
  for (std::int64_t first = 0; first < R; first += rows_at_a_time) {
    const Tensor losses = scratch_.tensor().slice({0, std::min(rows_at_a_time, R - first)});
    write_losses(on_, losses.data<float>(), sum.data<float>() + first, maximum.data<float>() + first,
                 target_logit.data<float>() + first, targets.data<std::int32_t>() + first, losses.elements());
    for (const float loss : to_host<float>(stream_, losses)) total.add(static_cast<double>(loss));
  }
  return total;
}

namespace {

/// Overwrites the logits with the gradient of @p weight times the loss. Block: one row; thread: every (threads of the block)-th pack. Reads
/// and writes the logits.
template <class T>
__global__ void __launch_bounds__(block_threads)
    subtract_targets(const LogitRows<T> rows, const float* sum, float weight)
{
  constexpr int N = pack_size<T>;
  const std::int64_t r = blockIdx.x, target = rows.target[r] - rows.vocabulary.first;
  const bool counted = rows.target[r] >= 0;
  const float maximum = rows.maxima[r], scale = weight / sum[r];
  T* const row = rows.first + r * rows.V;
  for (std::int64_t v = N * threadIdx.x; v < rows.V; v += N * blockDim.x) {
    Pack<N> pack = load_pack<N>(row + v, rows.V - v);
    for (int i = 0; i < N; ++i) {
      const bool shown = counted && v + i < rows.vocabulary.count;
      const float share = shown ? exponential(pack.at[i] - maximum) * scale : 0;
      pack.at[i] = shown && v + i == target ? share - weight : share;
    }
    store_pack(row + v, pack, rows.V - v);
  }
}

}  // namespace

void CudaKernels::loss_backward(const Tensor& logits, const Tensor& maximum, const Tensor& sum,
                                const Tensor& targets, Range vocabulary, double weight) const
{
  // forward:   loss[r] = log(sum over v of exp(logit[r, v] - maximum[r])) + maximum[r] - logit[r, target[r]]
  // gradient:  dlogit[r, v] = weight (exp(logit[r, v] - maximum[r]) / sum[r] - [v = target[r]])
  with_gpu_type(logits.type(), [&]<class T>(T) {
    const LogitRows<T> rows(logits, maximum, targets, vocabulary);
    launch(block_for_each_row<float>(on_, rows.R), subtract_targets<T>, rows, sum.data<float>(),
           static_cast<float>(weight));
  });
}

}  // namespace rankwise
