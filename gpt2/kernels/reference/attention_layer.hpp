#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gpt2/kernels/reference/reference.hpp"
#include "gpt2/kernels/reference_attention.hpp"

/// @file
/// Parts that the forward and the backward pass of the reference kernels of attention share. For .cpp files only.

namespace rankwise {

/// The dot product of two rows of D channels, one channel after the other.
template <class T, class U>
auto dot(const T* a, const U* b, std::int64_t D)
{
  return ordered_sum(SumOrder::sequential(D), [&](std::int64_t d) {
    return Factors<Accumulator<T>>{widen(a[d]), widen(b[d])};
  });
}

/// a[d] += factor b[d], rounded once, for the D channels of a head.
template <class A, class T>
void add_scaled(A* a, A factor, const T* b, std::int64_t D)
{
  for (std::int64_t d = 0; d < D; ++d) a[d] = std::fma(factor, widen(b[d]), a[d]);
}

/// Ends sums: 0 is added, so that none is -0, with or without terms that are 0.
template <class A>
void end_sums(A* sums, std::int64_t n)
{
  for (std::int64_t i = 0; i < n; ++i) sums[i] += 0;
}

/// Stores the soft-max of a query of a whole layer: its output in @p y, divided, and the log of its sum.
template <class T>
auto into_layer(const ReferenceLayer<Accumulator<T>>& layer, const Tensor& y, const Tensor& log_sum_exp)
{
  using A = Accumulator<T>;
  return [&layer, to = y.data<T>(), sums = log_sum_exp.data<A>()](std::int64_t b, std::int64_t h, std::int64_t q,
                                                                  const SoftmaxView<A>& found) {
    sums[layer.row(b, h, q)] = divide(to + layer.offset(b, h, q), found, layer.shape.D);
  };
}

/// Stores the soft-max of a query over a run of keys as it is.
template <class A>
auto into_partial(const ReferenceLayer<A>& layer, const SoftmaxPartial& partial)
{
  return [&layer, to = PartialView<A>(partial)](std::int64_t b, std::int64_t h, std::int64_t q,
                                                const SoftmaxView<A>& found) {
    const SoftmaxView<A> row = to[layer.row(b, h, q)];
    row.maximum = found.maximum;
    row.sum = found.sum;
    std::copy_n(found.output, layer.shape.D, row.output);
  };
}

/// Fills @p to with the dropout factors of one query's attention weights, one for each of @p keys keys: 0 or 1 / (1 - rate).
/// Does nothing without dropout.
template <class A>
void fill_factors(std::vector<A>& to, const ReferenceLayer<A>& layer, std::int64_t b, std::int64_t q,
                  std::int64_t h, std::int64_t keys)
{
  if (!layer.dropped) return;
  std::array<double, 4> four{};
  for (std::int64_t k = 0; k < keys; ++k) {
    const std::int64_t key = layer.runs.keys.first + k;
    if (k == 0 || key % 4 == 0) four = layer.mask.factors(b, q, layer.shape.heads.first + h, key);
    to[static_cast<std::size_t>(k)] = static_cast<A>(four[static_cast<std::size_t>(key % 4)]);
  }
}

}  // namespace rankwise
