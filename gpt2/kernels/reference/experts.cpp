#include "common/base/portable_math.hpp"
#include "gpt2/kernels/reference/reference.hpp"

namespace rankwise {

namespace {

/// Writes the k largest of @p E probabilities, the largest first, of equal ones the first.
template <class A>
void choose_largest(std::int32_t* choices, std::int64_t k, const A* probabilities, std::int64_t E)
{
  for (std::int64_t j = 0; j < k; ++j) {
    std::int32_t best = -1;
    for (std::int32_t e = 0; e < E; ++e) {
      const bool taken = std::find(choices, choices + j, e) != choices + j;
      if (!taken && (best < 0 || probabilities[e] > probabilities[best])) best = e;
    }
    choices[j] = best;
  }
}

}  // namespace

void ReferenceKernels::route(const Tensor& probabilities, const Tensor& choices, const Tensor& weights,
                             const Tensor& logits) const
{
  with_real_type(logits.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t R = logits.extent(0), E = logits.extent(1), k = choices.extent(1);
#pragma omp parallel for
    for (std::int64_t r = 0; r < R; ++r) {
      const A* const logit = logits.data<A>() + r * E;
      A *const p = probabilities.data<A>() + r * E, *const weight = weights.data<A>() + r * k;
      std::int32_t* const choice = choices.data<std::int32_t>() + r * k;
      // p[e] = exp(logit[e] - largest) / sum over i of exp(logit[i] - largest)
      const A largest = *std::max_element(logit, logit + E);
      A sum = 0, chosen = 0;
      for (std::int64_t e = 0; e < E; ++e) sum += p[e] = portable::exp(logit[e] - largest);
      for (std::int64_t e = 0; e < E; ++e) p[e] /= sum;
      choose_largest(choice, k, p, E);
      // weight[j] = p[choice j], for k > 1 over the sum of these
      for (std::int64_t j = 0; j < k; ++j) chosen += weight[j] = p[choice[j]];
      for (std::int64_t j = 0; j < k && k > 1; ++j) weight[j] /= chosen;
    }
  });
}

void ReferenceKernels::route_backward(const Tensor& dlogits, const Tensor& dweights, const Tensor& probabilities,
                                      const Tensor& choices, const Tensor& weights, const Tensor& pull) const
{
  // forward:   p = softmax(logits); weight[j] = p[choice j] for k = 1, else p[choice j] / S with S = sum over the
  //            choices of p
  // gradient:  dp[e] = pull[e], and for a choice + dweight[j] (k = 1) or + (dweight[j] - sum over i of dweight[i]
  //            weight[i]) / S;  dlogit[e] = p[e] (dp[e] - sum over i of p[i] dp[i])
  with_real_type(dlogits.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t R = probabilities.extent(0), E = probabilities.extent(1), k = choices.extent(1);
    const std::int64_t tokens = R / pull.extent(0);
#pragma omp parallel for
    for (std::int64_t r = 0; r < R; ++r) {
      const A *const p = probabilities.data<A>() + r * E, *const weight = weights.data<A>() + r * k;
      const A *const dweight = dweights.data<A>() + r * k, *const pulled = pull.data<A>() + r / tokens * E;
      const std::int32_t* const choice = choices.data<std::int32_t>() + r * k;
      A chosen = 0, mean = 0, dot = 0;
      for (std::int64_t j = 0; j < k; ++j) {
        chosen += p[choice[j]];
        mean += dweight[j] * weight[j];
      }
      const auto dp = [&](std::int64_t e) {
        const std::int64_t j = std::find(choice, choice + k, e) - choice;
        if (j == k) return pulled[e];
        return pulled[e] + (k == 1 ? dweight[j] : (dweight[j] - mean) / chosen);
      };
      for (std::int64_t e = 0; e < E; ++e) dot += p[e] * dp(e);
      for (std::int64_t e = 0; e < E; ++e) dlogits.data<T>()[r * E + e] = T(p[e] * (dp(e) - dot));
    }
  });
}

void ReferenceKernels::scatter_rows(const Tensor& rows, const Tensor& x, const Tensor& places) const
{
  with_real_type(x.type(), [&]<class T>(T) {
    const std::int64_t R = places.extent(0), k = places.extent(1), C = x.elements() / R;
    const std::int32_t* const place = places.data<std::int32_t>();
#pragma omp parallel for
    for (std::int64_t i = 0; i < R * k; ++i)
      if (place[i] >= 0) std::copy_n(x.data<T>() + i / k * C, C, rows.data<T>() + place[i] * C);
  });
}

void ReferenceKernels::combine_rows(const Tensor& y, const Tensor& rows, const Tensor& places,
                                    const Tensor& weights) const
{
  with_real_type(y.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t R = places.extent(0), k = places.extent(1), C = y.elements() / R;
    const std::int32_t* const place = places.data<std::int32_t>();
    const A* const weight = weights.empty() ? nullptr : weights.data<A>();
#pragma omp parallel for
    for (std::int64_t r = 0; r < R; ++r)
      for (std::int64_t c = 0; c < C; ++c) {
        // y[r, c] = sum over j of weight[r, j] rows[place[r, j], c]
        A sum = 0;
        for (std::int64_t i = r * k; i < (r + 1) * k; ++i)
          if (place[i] >= 0) sum += (weight ? weight[i] : 1) * widen(rows.data<T>()[place[i] * C + c]);
        y.data<T>()[r * C + c] = T(sum);
      }
  });
}

void ReferenceKernels::combine_rows_backward(const Tensor& drows, const Tensor& dweights, const Tensor& dy,
                                             const Tensor& rows, const Tensor& places, const Tensor& weights) const
{
  // forward:   y[r] = sum over j of weight[r, j] rows[place[r, j]]
  // gradient:  drows[place[r, j]] = weight[r, j] dy[r];  dweight[r, j] = sum over c of dy[r, c] rows[place[r, j], c]
  with_real_type(dy.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t R = places.extent(0), k = places.extent(1), C = dy.elements() / R;
    const std::int32_t* const place = places.data<std::int32_t>();
    const A* const weight = weights.data<A>();
#pragma omp parallel for
    for (std::int64_t i = 0; i < R * k; ++i) {
      A sum = 0;
      const T* const above = dy.data<T>() + i / k * C;
      for (std::int64_t c = 0; c < C && place[i] >= 0; ++c) {
        const std::int64_t at = place[i] * C + c;
        sum += widen(above[c]) * widen(rows.data<T>()[at]);
        drows.data<T>()[at] = T(weight[i] * widen(above[c]));
      }
      dweights.data<A>()[i] = sum;
    }
  });
}

}  // namespace rankwise
