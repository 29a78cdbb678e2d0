#include <algorithm>
#include <limits>
#include <type_traits>

#include "gpt2/kernels/cpu/cpu.hpp"
#include "gpt2/kernels/cpu/vector_math.hpp"
#include "gpt2/kernels/logit_rows.hpp"

namespace rankwise {

namespace {

/// The largest of @p n logits.
template <class T>
float row_largest(const T* logits, std::int64_t n)
{
  return largest(logits, n, -std::numeric_limits<float>::infinity());
}

/// The sum of exp(logit - maximum) over @p n logits.
template <class T>
float sum_of_exponentials(const T* logits, std::int64_t n, float maximum)
{
  return lane_sum(n, [&](std::int64_t v) { return exponential(widen(logits[v]) - maximum); });
}

}  // namespace

void CpuKernels::row_maximum(const Tensor& maximum, const Tensor& logits, std::int64_t valid) const
{
  float* const to = maximum.data<float>();
  const std::int64_t R = maximum.elements(), V = logits.elements() / R;
  with_fast_type(logits.type(), [&]<class T>(T) {
    const T* const from = logits.data<T>();
#pragma omp parallel for
    for (std::int64_t r = 0; r < R; ++r) to[r] = row_largest(from + r * V, valid);
  });
}

void CpuKernels::row_sum(const Tensor& sum, const Tensor& target_logit, const Tensor& logits, const Tensor& maximum,
                         const Tensor& targets, Range vocabulary, const SumOrder&) const
{
  float* const wanted = target_logit.data<float>();
  with_fast_type(logits.type(), [&]<class T>(T) {
    const LogitRows<T> rows(logits, maximum, sum, targets, vocabulary);
#pragma omp parallel for
    for (std::int64_t r = 0; r < rows.R; ++r) {
      rows.sums[r] = sum_of_exponentials(rows.row(r), vocabulary.count, rows.maxima[r]);
      wanted[r] = rows.target_logit(r);
    }
  });
}

void CpuKernels::row_statistics(const Tensor& maximum, const Tensor& sum, const Tensor& target_logit,
                                const Tensor& logits, const Tensor& targets, Range vocabulary,
                                const SumOrder&) const
{
  float* const wanted = target_logit.data<float>();
  with_fast_type(logits.type(), [&]<class T>(T) {
    const LogitRows<T> rows(logits, maximum, sum, targets, vocabulary);
#pragma omp parallel for
    for (std::int64_t r = 0; r < rows.R; ++r) {
      const T* const row = rows.row(r);  // read from memory once: the row is still in cache for the sum
      rows.maxima[r] = row_largest(row, vocabulary.count);
      rows.sums[r] = sum_of_exponentials(row, vocabulary.count, rows.maxima[r]);
      wanted[r] = rows.target_logit(r);
    }
  });
}

void CpuKernels::loss_backward(const Tensor& logits, const Tensor& maximum, const Tensor& sum,
                               const Tensor& targets, Range vocabulary, double weight) const
{
  // forward:   loss[r] = log(sum over v of exp(logit[r, v] - maximum[r])) + maximum[r] - logit[r, target[r]]
  // gradient:  dlogit[r, v] = weight (exp(logit[r, v] - maximum[r]) / sum[r] - [v = target[r]])
  const auto factor = static_cast<float>(weight);
  with_fast_type(logits.type(), [&]<class T>(T) {
    const LogitRows<T> rows(logits, maximum, sum, targets, vocabulary);
#pragma omp parallel for
    for (std::int64_t r = 0; r < rows.R; ++r) {
      T* const row = rows.row(r);
      const std::int64_t counted = rows.target[r] >= 0 ? vocabulary.count : 0;
      const float row_maximum = rows.maxima[r], scale = factor / rows.sums[r];
      const float target_logit = rows.target_logit(r);
      fill_row(
          row, counted, [&](std::int64_t v) { return exponential(widen(row[v]) - row_maximum) * scale; }, row);
      std::fill(row + counted, row + rows.V, T(0.0F));
      if (!vocabulary.contains(rows.target[r])) continue;
      T& wanted = row[rows.target[r] - vocabulary.first];
      if constexpr (std::is_same_v<T, float>)
        wanted -= factor;
      else  // computed from the unrounded probability: the subtraction may cancel most bits of the rounded one
        wanted = narrow<T>(exponential(target_logit - row_maximum) * scale - factor);
    }
  });
}

}  // namespace rankwise
