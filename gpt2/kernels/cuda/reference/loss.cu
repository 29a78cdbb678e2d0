#include <algorithm>
#include <limits>
#include <vector>

#include "common/base/portable_math.hpp"
#include "gpt2/kernels/cuda/reference/reference.hpp"
#include "gpt2/kernels/ordered_sum.hpp"

namespace rankwise {

namespace {

/// Statistics of the R rows of (R, V) logits, and the vocabulary entries that the logits belong to. Only the
/// members that a kernel reads are set.
struct RowView {
  const float *maximum = nullptr, *sum = nullptr, *target_logit = nullptr;  // (R)
  const std::int32_t* targets = nullptr;                                    // (R)
  std::int64_t R = 0, V = 0;
  Range vocabulary{};
};

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
void sum_exponentials(cudaStream_t stream, float* sum, float* target_logit, const T* logits, RowView rows,
                      SumOrder order)
{
  for_each(stream, rows.R, [=] __device__(std::int64_t r) {
    const T* const row = logits + r * rows.V;
    const std::int64_t target = rows.targets[r];
    sum[r] = stacked_sum(order.leaves(), [&](std::int64_t leaf) {
      const Range columns = intersect(order.run(leaf, 0), {0, rows.vocabulary.count});
      float leaf_sum = 0;
      for (std::int64_t v = columns.first; v < columns.end(); ++v)
        leaf_sum += portable::exp(widen(row[v]) - rows.maximum[r]);
      return leaf_sum;
    });
    target_logit[r] = rows.vocabulary.contains(target) ? widen(row[target - rows.vocabulary.first]) : 0.0f;
  });
}

/// A thread computes one row: log(sum) + maximum - target_logit, or zero for a row that is not counted. 4 (5 R)
/// bytes move.
void row_losses(cudaStream_t stream, float* losses, RowView rows)
{
  for_each(stream, rows.R, [=] __device__(std::int64_t r) {
    losses[r] = rows.targets[r] >= 0 ? portable::log(rows.sum[r]) + rows.maximum[r] - rows.target_logit[r] : 0.0f;
  });
}

/// A thread computes one logit. 4 (2 R V + 3 R) bytes move.
template <class T>
void backward(cudaStream_t stream, T* logits, RowView rows, float weight)
{
  for_each_element(stream, rows.R, rows.V, [=] __device__(std::int64_t r, std::int64_t v) {
    T& element = logits[r * rows.V + v];
    const bool counted = rows.targets[r] >= 0 && v < rows.vocabulary.count;
    const float probability = counted ? portable::exp(widen(element) - rows.maximum[r]) / rows.sum[r] : 0.0f;
    const float expected = counted && rows.targets[r] == rows.vocabulary.first + v ? 1.0f : 0.0f;
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
  const std::int64_t R = maximum.elements();
  const RowView rows{.maximum = maximum.data<float>(),
                     .targets = targets.data<std::int32_t>(),
                     .R = R,
                     .V = logits.elements() / R,
                     .vocabulary = vocabulary};
  with_gpu_type(logits.type(), [&]<class T>(T) {
    sum_exponentials(gpu(), sum.data<float>(), target_logit.data<float>(), logits.data<T>(), rows, order);
  });
}

ExactScalar CudaReferenceKernels::loss_sum(const Tensor& sum, const Tensor& maximum, const Tensor& target_logit,
                                           const Tensor& targets) const
{
  ExactScalar loss;
  const std::int64_t R = targets.elements(), piece = scratch_.tensor().elements();
  for (std::int64_t first = 0; first < R; first += piece) {
    const Tensor losses = scratch_.tensor().slice({0, std::min(piece, R - first)});
    row_losses(gpu(), losses.data<float>(),
               {.maximum = maximum.data<float>() + first,
                .sum = sum.data<float>() + first,
                .target_logit = target_logit.data<float>() + first,
                .targets = targets.data<std::int32_t>() + first,
                .R = losses.elements()});
    for (const float row : to_host<float>(stream_, losses)) loss.add(static_cast<double>(row));
  }
  return loss;
}

void CudaReferenceKernels::loss_backward(const Tensor& logits, const Tensor& maximum, const Tensor& sum,
                                         const Tensor& targets, Range vocabulary, double weight) const
{
  // forward:   loss[r] = log(sum over v of exp(logit[r, v] - maximum[r])) + maximum[r] - logit[r, target[r]]
  // gradient:  dlogit[r, v] = weight (exp(logit[r, v] - maximum[r]) / sum[r] - [v = target[r]])
  const std::int64_t R = maximum.elements();
  const RowView rows{.maximum = maximum.data<float>(),
                     .sum = sum.data<float>(),
                     .targets = targets.data<std::int32_t>(),
                     .R = R,
                     .V = logits.elements() / R,
                     .vocabulary = vocabulary};
  with_gpu_type(logits.type(),
                [&]<class T>(T) { backward(gpu(), logits.data<T>(), rows, static_cast<float>(weight)); });
}

}  // namespace rankwise
