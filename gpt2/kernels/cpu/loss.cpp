#include <algorithm>
#include <limits>

#include "gpt2/kernels/cpu/cpu.hpp"
#include "gpt2/kernels/cpu/vector_math.hpp"

namespace rankwise {

namespace {

/// The largest of @p n logits.
float row_largest(const float* logits, std::int64_t n)
{
  return largest(logits, n, -std::numeric_limits<float>::infinity());
}

/// The sum of exp(logit - maximum) over @p n logits.
float sum_of_exponentials(const float* logits, std::int64_t n, float maximum)
{
  return lane_sum(n, [&](std::int64_t v) { return exponential(logits[v] - maximum); });
}

/// The logits of the rows that a soft-max is over, and what is known of each row.
struct LogitRows {
  LogitRows(const Tensor& logits, const Tensor& maximum, const Tensor& sum, const Tensor& targets, Range entries)
      : first(logits.data<float>()),
        maxima(maximum.data<float>()),
        sums(sum.data<float>()),
        target(targets.data<std::int32_t>()),
        vocabulary(entries),
        R(targets.elements()),
        V(logits.elements() / R)
  {
  }
  /// The target's logit; zero when it is not in this part.
  float target_logit(std::int64_t r) const
  {
    return vocabulary.contains(target[r]) ? first[r * V + target[r] - vocabulary.first] : 0;
  }

  float *first, *maxima, *sums;
  const std::int32_t* target;
  Range vocabulary;
  std::int64_t R, V;
};

}  // namespace

void CpuKernels::row_maximum(const Tensor& maximum, const Tensor& logits, std::int64_t valid) const
{
  float* const to = maximum.data<float>();
  const float* const from = logits.data<float>();
  const std::int64_t R = maximum.elements(), V = logits.elements() / R;
#pragma omp parallel for
  for (std::int64_t r = 0; r < R; ++r) to[r] = row_largest(from + r * V, valid);
}

void CpuKernels::row_sum(const Tensor& sum, const Tensor& target_logit, const Tensor& logits, const Tensor& maximum,
                         const Tensor& targets, Range vocabulary, const SumOrder&) const
{
  const LogitRows rows(logits, maximum, sum, targets, vocabulary);
  float* const wanted = target_logit.data<float>();
#pragma omp parallel for
  for (std::int64_t r = 0; r < rows.R; ++r) {
    rows.sums[r] = sum_of_exponentials(rows.first + r * rows.V, vocabulary.count, rows.maxima[r]);
    wanted[r] = rows.target_logit(r);
  }
}

void CpuKernels::row_statistics(const Tensor& maximum, const Tensor& sum, const Tensor& target_logit,
                                const Tensor& logits, const Tensor& targets, Range vocabulary,
                                const SumOrder&) const
{
  const LogitRows rows(logits, maximum, sum, targets, vocabulary);
  float* const wanted = target_logit.data<float>();
#pragma omp parallel for
  for (std::int64_t r = 0; r < rows.R; ++r) {
    const float* const row = rows.first + r * rows.V;  // read from memory once: a row stays in cache for its sum
    rows.maxima[r] = row_largest(row, vocabulary.count);
    rows.sums[r] = sum_of_exponentials(row, vocabulary.count, rows.maxima[r]);
    wanted[r] = rows.target_logit(r);
  }
}

void CpuKernels::loss_backward(const Tensor& logits, const Tensor& maximum, const Tensor& sum,
                               const Tensor& targets, Range vocabulary) const
{
  // loss[r] = log(sum over v of exp(logit[r, v] - maximum[r])) + maximum[r] - logit[r, target[r]]
  const LogitRows rows(logits, maximum, sum, targets, vocabulary);
#pragma omp parallel for
  for (std::int64_t r = 0; r < rows.R; ++r) {
    float* const row = rows.first + r * rows.V;
    const std::int64_t counted = rows.target[r] >= 0 ? vocabulary.count : 0;
    const float row_maximum = rows.maxima[r], scale = 1 / rows.sums[r];
#pragma omp simd
    for (std::int64_t v = 0; v < counted; ++v) row[v] = exponential(row[v] - row_maximum) * scale;
    std::fill(row + counted, row + rows.V, 0.0F);
    if (vocabulary.contains(rows.target[r])) row[rows.target[r] - vocabulary.first] -= 1;
  }
}

}  // namespace rankwise
