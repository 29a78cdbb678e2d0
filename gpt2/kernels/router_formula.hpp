#pragma once

#include <cstdint>

#include "common/base/portable_math.hpp"

/// @file
/// The router of a block with experts, row by row, of the reference families: on the host and on a GPU.

namespace rankwise {

/// True if expert @p e is one of @p count choices.
constexpr bool is_chosen(const std::int32_t* choices, std::int64_t count, std::int64_t e)
{
  for (std::int64_t j = 0; j < count; ++j)
    if (choices[j] == e) return true;
  return false;
}

/// One row of KernelFamily::route(): E experts, of which k are chosen.
template <class A>
constexpr void route_row(A* p, std::int32_t* choices, A* weights, const A* logits, std::int64_t E, std::int64_t k)
{
  // p[e] = exp(logit[e] - largest) / sum over i of exp(logit[i] - largest)
  A largest = logits[0], sum = 0, chosen = 0;
  for (std::int64_t e = 1; e < E; ++e)
    if (largest < logits[e]) largest = logits[e];
  for (std::int64_t e = 0; e < E; ++e) sum += p[e] = portable::exp(logits[e] - largest);
  for (std::int64_t e = 0; e < E; ++e) p[e] /= sum;
  // The most probable expert that is not chosen yet, of equal ones the first; weight[j] = p[choice j].
  for (std::int64_t j = 0; j < k; ++j) {
    std::int64_t best = -1;
    for (std::int64_t e = 0; e < E; ++e)
      if (!is_chosen(choices, j, e) && (best < 0 || p[e] > p[best])) best = e;
    choices[j] = static_cast<std::int32_t>(best);
    chosen += weights[j] = p[best];
  }
  // For k > 1 over the sum of these.
  for (std::int64_t j = 0; j < k && k > 1; ++j) weights[j] /= chosen;
}

/// One row of KernelFamily::route_backward().
///
///     forward    p = softmax(logits); weight[j] = p[choice j] for k = 1, else p[choice j] / S, S the sum of these
///     backward   dp[e] = pull[e], and for a choice + dweight[j] (k = 1) or + (dweight[j] - sum over i of dweight[i]
///                weight[i]) / S;  dlogit[e] = p[e] (dp[e] - sum over i of p[i] dp[i])
template <class T, class A>
constexpr void route_row_backward(T* dlogits, const A* dweights, const A* p, const std::int32_t* choices,
                                  const A* weights, const A* pull, std::int64_t E, std::int64_t k)
{
  A chosen = 0, mean = 0, sum = 0;
  for (std::int64_t j = 0; j < k; ++j) {
    chosen += p[choices[j]];
    mean += dweights[j] * weights[j];
  }
  const auto dp = [&](std::int64_t e) {
    for (std::int64_t j = 0; j < k; ++j)
      if (choices[j] == e) return pull[e] + (k == 1 ? dweights[j] : (dweights[j] - mean) / chosen);
    return pull[e];
  };
  for (std::int64_t e = 0; e < E; ++e) sum += p[e] * dp(e);
  for (std::int64_t e = 0; e < E; ++e) dlogits[e] = T(p[e] * (dp(e) - sum));
}

}  // namespace rankwise
