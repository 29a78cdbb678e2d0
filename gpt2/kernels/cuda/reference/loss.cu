#include <algorithm>
#include <limits>
#include <vector>

#include "common/base/portable_math.hpp"
#include "gpt2/kernels/cuda/reference/reference.hpp"
#include "gpt2/kernels/logit_rows.hpp"

namespace rankwise {

namespace {

/// A thread computes one row. 4 (R valid + R) bytes move.
template <class T>
void find_maximum(cudaStream_t stream, float* maximum, const T* logits, std::int64_t R, std::int64_t V,
                  std::int64_t valid)
{
  constexpr float lowest = -std::numeric_limits<float>::infinity();
  for_each(stream, R, [=] __device__(std::int64_t r) {
    float largest = lowest;
    for (std::int64_t v = 0; v < valid; ++v)
      if (largest < widen(logits[r * V + v])) largest = widen(logits[r * V + v]);
    maximum[r] = largest;
  });
}

/// A thread computes one row: sum[r] = sum over v of exp(logit[r, v] - maximum[r]). 4 (R V + 4 R) bytes move.
template <class T>
void sum_exponentials(cudaStream_t stream, float* target_logit, LogitRows<T> rows, SumOrder order)
{
  for_each(stream, rows.R, [=] __device__(std::int64_t r) {
    const T* const row = rows.row(r);
    rows.sums[r] = stacked_sum(order.leaves(), [&](std::int64_t leaf) {
      const Range columns = intersect(order.run(leaf, 0), {0, rows.vocabulary.count});
      return interleaved_sum(columns,
                             [&](std::int64_t v) { return portable::exp(widen(row[v]) - rows.maxima[r]); });
    });
    target_logit[r] = rows.target_logit(r);
  });
}

/// A thread computes one row: log(sum) + maximum - target_logit, or zero for a row that is not counted. 4 (5 R)
/// bytes move.
void row_losses(cudaStream_t stream, float* losses, const float* sum, const float* maximum,
                const float* target_logit, const std::int32_t* target, std::int64_t R)
{
  for_each(stream, R, [=] __device__(std::int64_t r) {
    losses[r] = target[r] >= 0 ? portable::log(sum[r]) + maximum[r] - target_logit[r] : 0.0f;
  });
}

/// A thread computes one logit. 4 (2 R V + 3 R) bytes move.
template <class T>
void backward(cudaStream_t stream, LogitRows<T> rows, float weight)
{
  for_each_element(stream, rows.R, rows.V, [=] __device__(std::int64_t r, std::int64_t v) {
    T& element = rows.row(r)[v];
    const bool counted = rows.target[r] >= 0 && v < rows.vocabulary.count;
    const float probability = counted ? portable::exp(widen(element) - rows.maxima[r]) / rows.sums[r] : 0.0f;
    const float expected = counted && rows.target[r] == rows.vocabulary.first + v ? 1.0f : 0.0f;
    element = T(weight * (probability - expected));
  });
}

}  // namespace

void CudaReferenceKernels::row_maximum(const Tensor& maximum, const Tensor& logits, std::int64_t valid) const
{
  const std::int64_t R = maximum.elements();
  with_gpu_type(logits.type(), [&]<class T>(T) {
    find_maximum(gpu(), maximum.data<float>(), logits.data<T>(), R, logits.elements() / R, valid);
  });
}

void CudaReferenceKernels::row_sum(const Tensor& sum, const Tensor& target_logit, const Tensor& logits,
                                   const Tensor& maximum, const Tensor& targets, Range vocabulary,
                                   const SumOrder& order) const
{
  with_gpu_type(logits.type(), [&]<class T>(T) {
    sum_exponentials(gpu(), target_logit.data<float>(), LogitRows<T>(logits, maximum, sum, targets, vocabulary),
                     order);
  });
}

ExactScalar CudaReferenceKernels::loss_sum(const Tensor& sum, const Tensor& maximum, const Tensor& target_logit,
                                           const Tensor& targets) const
{
  ExactScalar loss;
  const std::int64_t R = targets.elements(), piece = scratch_.tensor().elements();
  for (std::int64_t first = 0; first < R; first += piece) {
    const Tensor losses = scratch_.tensor().slice({0, std::min(piece, R - first)});
    row_losses(gpu(), losses.data<float>(), sum.data<float>() + first, maximum.data<float>() + first,
               target_logit.data<float>() + first, targets.data<std::int32_t>() + first, losses.elements());
    for (const float row : to_host<float>(stream_, losses)) loss.add(static_cast<double>(row));
  }
  return loss;
}

void CudaReferenceKernels::loss_backward(const Tensor& logits, const Tensor& maximum, const Tensor& sum,
                                         const Tensor& targets, Range vocabulary, double weight) const
{
  // forward:   loss[r] = log(sum over v of exp(logit[r, v] - maximum[r])) + maximum[r] - logit[r, target[r]]
  // gradient:  dlogit[r, v] = weight (exp(logit[r, v] - maximum[r]) / sum[r] - [v = target[r]])
  with_gpu_type(logits.type(), [&]<class T>(T) {
    backward(gpu(), LogitRows<T>(logits, maximum, sum, targets, vocabulary), static_cast<float>(weight));
  });
}

}  // namespace rankwise
