#include <limits>
#include <vector>

#include "common/base/portable_math.hpp"
#include "gpt2/kernels/logit_rows.hpp"
#include "gpt2/kernels/reference/reference.hpp"

namespace rankwise {

void ReferenceKernels::row_maximum(const Tensor& maximum, const Tensor& logits, std::int64_t valid) const
{
  with_real_type(logits.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    A* const to = maximum.data<A>();
    const T* const from = logits.data<T>();
    const std::int64_t R = maximum.elements(), V = logits.elements() / R;
#pragma omp parallel for
    for (std::int64_t r = 0; r < R; ++r) {
      // maximum[r] = the largest of the first `valid` logits; a shard with only padding gives -infinity.
      to[r] = -std::numeric_limits<A>::infinity();
      for (std::int64_t v = 0; v < valid; ++v) to[r] = std::max(to[r], widen(from[r * V + v]));
    }
  });
}

void ReferenceKernels::row_sum(const Tensor& sum, const Tensor& target_logit, const Tensor& logits,
                               const Tensor& maximum, const Tensor& targets, Range vocabulary,
                               const SumOrder& order) const
{
  with_real_type(logits.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const LogitRows<T> rows(logits, maximum, sum, targets, vocabulary);
    A* const wanted = target_logit.data<A>();
#pragma omp parallel for
    for (std::int64_t r = 0; r < rows.R; ++r) {
      const T* const row = rows.row(r);
      // sum[r] = sum over v of exp(logit[r, v] - maximum[r]), without the padding columns.
      std::vector<A> exponentials(static_cast<std::size_t>(vocabulary.count));
      for (std::int64_t v = 0; v < vocabulary.count; ++v)
        exponentials[static_cast<std::size_t>(v)] = portable::exp(widen(row[v]) - rows.maxima[r]);
      rows.sums[r] = stacked_sum(order.leaves(), [&](std::int64_t leaf) {
        const Range columns = intersect(order.run(leaf, 0), {0, vocabulary.count});
        return interleaved_sum(columns, [&](std::int64_t v) { return exponentials[static_cast<std::size_t>(v)]; });
      });
      wanted[r] = rows.target_logit(r);
    }
  });
}

ExactScalar ReferenceKernels::loss_sum(const Tensor& sum, const Tensor& maximum, const Tensor& target_logit,
                                       const Tensor& targets) const
{
  // loss[r] = log(sum[r]) + maximum[r] - target_logit[r]; rows with target -1 are not counted. The sum is exact, so
  // its order does not matter.
  ExactScalar loss;
  with_real_type(sum.type(), [&]<class A>(A) {
    const A *const sums = sum.data<A>(), *const maxima = maximum.data<A>(), *const wanted = target_logit.data<A>();
    const std::int32_t* const target = targets.data<std::int32_t>();
    for (std::int64_t r = 0; r < targets.elements(); ++r)
      if (target[r] >= 0)
        loss.add(static_cast<double>(portable::log(widen(sums[r])) + widen(maxima[r]) - widen(wanted[r])));
  });
  return loss;
}

void ReferenceKernels::loss_backward(const Tensor& logits, const Tensor& maximum, const Tensor& sum,
                                     const Tensor& targets, Range vocabulary, double weight) const
{
  // forward:   loss[r] = log(sum over v of exp(logit[r, v] - maximum[r])) + maximum[r] - logit[r, target[r]]
  // gradient:  dlogit[r, v] = weight (exp(logit[r, v] - maximum[r]) / sum[r] - [v = target[r]])
  with_real_type(logits.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const LogitRows<T> rows(logits, maximum, sum, targets, vocabulary);
#pragma omp parallel for
    for (std::int64_t r = 0; r < rows.R; ++r) {
      T* const row = rows.row(r);
      // Rows that are not counted and padding columns get the gradient zero.
      const std::int64_t counted = rows.target[r] >= 0 ? vocabulary.count : 0;
      for (std::int64_t v = 0; v < counted; ++v) {
        const A probability = portable::exp(widen(row[v]) - rows.maxima[r]) / rows.sums[r];
        const A expected = rows.target[r] == vocabulary.first + v ? A(1) : A(0);
        row[v] = T(static_cast<A>(weight) * (probability - expected));
      }
      std::fill(row + counted, row + rows.V, T(0));
    }
  });
}

}  // namespace rankwise
