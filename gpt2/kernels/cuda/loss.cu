#include <algorithm>
#include <cmath>
#include <limits>

#include "gpt2/kernels/cuda/cuda.hpp"
#include "gpt2/kernels/cuda/fours.hpp"
#include "gpt2/kernels/cuda/reduce.hpp"

// A row of logits is long, and its logits are 4 R V bytes, the largest tensor of a model: a block takes a row, and reads it
// as few times as can be.

namespace rankwise {

namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

/// The logits of the rows that a soft-max is over, and what is known of each row.
struct LogitRows {
  LogitRows(const Tensor& logits, const Tensor& maximum, const Tensor& targets, Range entries)
      : first(logits.data<float>()),
        maxima(maximum.data<float>()),
        target(targets.data<std::int32_t>()),
        vocabulary(entries),
        R(targets.elements()),
        V(R > 0 ? logits.elements() / R : 0)
  {
  }
  /// The target's logit; zero when it is not in this part.
  __device__ float target_logit(std::int64_t r) const
  {
    return vocabulary.contains(target[r]) ? first[r * V + target[r] - vocabulary.first] : 0;
  }

  float *first, *maxima;
  const std::int32_t* target;
  Range vocabulary;  // its count is of those that are no padding
  std::int64_t R, V;
};

/// One block for each of R rows, with room to reduce numbers of type T.
template <class T>
Grid block_for_each_row(cudaStream_t stream, std::int64_t R, SourceLocation where = SourceLocation::current())
{
  return {stream, dim3(static_cast<unsigned>(R)), block_threads, most_warps * sizeof(T), where};
}

/// Calls use(logit) for the logits of a row that are this thread's: every (threads of the block)-th four.
template <class Use>
__device__ void for_each_logit(const float* row, std::int64_t count, Use&& use)
{
  for (std::int64_t v = 4 * threadIdx.x; v < count; v += 4 * blockDim.x) {
    const Four four = load_four(row + v, count - v);
    for (int i = 0; i < 4; ++i)
      if (i < count - v) use(four.at[i]);
  }
}

/// Block: one row. Reads 4 R V bytes.
__global__ void __launch_bounds__(block_threads)
    find_maximum(float* maximum, const float* logits, std::int64_t valid, std::int64_t V)
{
  const std::int64_t r = blockIdx.x;
  float largest = minus_infinity;
  for_each_logit(logits + r * V, valid, [&](float logit) { largest = std::fmax(largest, logit); });
  largest = block_reduce(largest, Larger(), &shared_memory<float>());
  if (threadIdx.x == 0) maximum[r] = largest;
}

/// Block: one row. Reads 4 R V bytes.
__global__ void __launch_bounds__(block_threads)
    sum_exponentials(float* sum, float* target_logit, const LogitRows rows)
{
  const std::int64_t r = blockIdx.x;
  const float maximum = rows.maxima[r];
  float mine = 0;
  for_each_logit(rows.first + r * rows.V, rows.vocabulary.count,
                 [&](float logit) { mine += std::exp(logit - maximum); });
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
  launch(block_for_each_row<float>(on_, R), find_maximum, maximum.data<float>(), logits.data<float>(), valid,
         logits.elements() / R);
}

void CudaKernels::row_sum(const Tensor& sum, const Tensor& target_logit, const Tensor& logits,
                          const Tensor& maximum, const Tensor& targets, Range vocabulary, const SumOrder&) const
{
  const LogitRows rows(logits, maximum, targets, vocabulary);
  launch(block_for_each_row<float>(on_, rows.R), sum_exponentials, sum.data<float>(), target_logit.data<float>(),
         rows);
}

namespace {

/// exp(from - to), 1 where both are infinite.
__device__ inline float rescaled(float from, float to)
{
  return from == to ? 1 : std::exp(from - to);
}

/// Two parts of a row as one: x is the largest logit of a part, y its sum of exp(logit - x).
/// @source  Milakov and Gimelshein 2018.
struct JoinParts {
  __device__ float2 operator()(float2 a, float2 b) const
  {
    const float largest = std::fmax(a.x, b.x);
    return make_float2(largest, a.y * rescaled(a.x, largest) + b.y * rescaled(b.x, largest));
  }
};

/// Block: one row. Reads 4 R V bytes, once.
__global__ void __launch_bounds__(block_threads)
    find_maximum_and_sum(float* sum, float* target_logit, const LogitRows rows)
{
  const std::int64_t r = blockIdx.x;
  float2 part = make_float2(minus_infinity, 0);
  for_each_logit(rows.first + r * rows.V, rows.vocabulary.count, [&](float logit) {
    const bool larger = logit > part.x;  // one exponential serves both cases
    const float decay = larger ? rescaled(part.x, logit) : rescaled(logit, part.x);
    part = larger ? make_float2(logit, part.y * decay + 1) : make_float2(part.x, part.y + decay);
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
  const LogitRows rows(logits, maximum, targets, vocabulary);
  launch(block_for_each_row<float2>(on_, rows.R), find_maximum_and_sum, sum.data<float>(),
         target_logit.data<float>(), rows);
}

namespace {

/// losses[r] = the cross-entropy of row r, zero where it is not counted. Thread: one row. Moves 20 R bytes.
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
  const std::int64_t R = targets.elements(), room = scratch_.tensor().elements();
  ExactScalar total;
  for (std::int64_t first = 0; first < R; first += room) {
    const Tensor losses = scratch_.tensor().slice({0, std::min(room, R - first)});
    write_losses(on_, losses.data<float>(), sum.data<float>() + first, maximum.data<float>() + first,
                 target_logit.data<float>() + first, targets.data<std::int32_t>() + first, losses.elements());
    for (const float loss : to_host<float>(stream_, losses)) total.add(static_cast<double>(loss));
  }
  return total;
}

namespace {

/// logits become their gradient. Block: one row; thread: every (threads of the block)-th four. Reads and writes: 8 R V
/// bytes.
__global__ void __launch_bounds__(block_threads) subtract_targets(const LogitRows rows, const float* sum)
{
  const std::int64_t r = blockIdx.x, target = rows.target[r] - rows.vocabulary.first;
  const bool counted = rows.target[r] >= 0;
  const float maximum = rows.maxima[r], inverse = 1 / sum[r];
  float* const row = rows.first + r * rows.V;
  for (std::int64_t v = 4 * threadIdx.x; v < rows.V; v += 4 * blockDim.x) {
    Four four = load_four(row + v, rows.V - v);
    for (int i = 0; i < 4; ++i) {
      const bool shown = counted && v + i < rows.vocabulary.count;
      const float probability = shown ? std::exp(four.at[i] - maximum) * inverse : 0;
      four.at[i] = shown && v + i == target ? probability - 1 : probability;
    }
    store_four(row + v, four, rows.V - v);
  }
}

}  // namespace

void CudaKernels::loss_backward(const Tensor& logits, const Tensor& maximum, const Tensor& sum,
                                const Tensor& targets, Range vocabulary) const
{
  // loss[r] = log(sum over v of exp(logit[r, v] - maximum[r])) + maximum[r] - logit[r, target[r]]
  const LogitRows rows(logits, maximum, targets, vocabulary);
  launch(block_for_each_row<float>(on_, rows.R), subtract_targets, rows, sum.data<float>());
}

}  // namespace rankwise
