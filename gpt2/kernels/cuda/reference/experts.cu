#include "common/base/portable_math.hpp"
#include "gpt2/kernels/cuda/reference/reference.hpp"

namespace rankwise {

namespace {

/// Results of the router, row by row.
struct RouterView {
  float *probabilities, *weights;
  std::int32_t* choices;
  std::int64_t E, k;

  /// True if expert @p e is one of the first @p count choices of row @p r.
  __device__ bool chosen(std::int64_t r, std::int64_t e, std::int64_t count) const
  {
    for (std::int64_t j = 0; j < count; ++j)
      if (choices[r * k + j] == e) return true;
    return false;
  }
};

/// A thread computes one row. 4 R (2 E + 2 k) bytes move.
void choose_experts(cudaStream_t stream, RouterView to, const float* logits, std::int64_t R)
{
  for_each(stream, R, [=] __device__(std::int64_t r) {
    const std::int64_t E = to.E, k = to.k;
    const float* const logit = logits + r * E;
    float *const p = to.probabilities + r * E, *const weight = to.weights + r * k;
    // p[e] = exp(logit[e] - largest) / sum over i of exp(logit[i] - largest)
    float largest = logit[0], sum = 0, chosen = 0;
    for (std::int64_t e = 1; e < E; ++e)
      if (largest < logit[e]) largest = logit[e];
    for (std::int64_t e = 0; e < E; ++e) {
      p[e] = portable::exp(logit[e] - largest);
      sum += p[e];
    }
    for (std::int64_t e = 0; e < E; ++e) p[e] /= sum;
    // The most probable expert that is not chosen yet, of equal ones the first.
    for (std::int64_t j = 0; j < k; ++j) {
      std::int64_t best = -1;
      for (std::int64_t e = 0; e < E; ++e)
        if (!to.chosen(r, e, j) && (best < 0 || p[e] > p[best])) best = e;
      to.choices[r * k + j] = static_cast<std::int32_t>(best);
      weight[j] = p[best];
      chosen += weight[j];
    }
    for (std::int64_t j = 0; j < k && k > 1; ++j) weight[j] /= chosen;
  });
}

/// A thread computes one row of dlogits. 4 R (2 E + 3 k) bytes move.
///
///     forward    p = softmax(logits); weight[j] = p[choice j] for k = 1, else p[choice j] / S, S the sum of these
///     backward   dp[e] = pull[e], and for a choice + dweight[j] (k = 1) or + (dweight[j] - sum over i of dweight[i]
///                weight[i]) / S;  dlogit[e] = p[e] (dp[e] - sum over i of p[i] dp[i])
template <class T>
void router_backward(cudaStream_t stream, T* dlogits, const float* dweights, RouterView of, const float* pull,
                     std::int64_t R, std::int64_t tokens)
{
  for_each(stream, R, [=] __device__(std::int64_t r) {
    const std::int64_t E = of.E, k = of.k;
    const float *const p = of.probabilities + r * E, *const weight = of.weights + r * k;
    const float *const dweight = dweights + r * k, *const pulled = pull + r / tokens * E;
    const std::int32_t* const choice = of.choices + r * k;
    float chosen = 0, mean = 0, sum = 0;
    for (std::int64_t j = 0; j < k; ++j) {
      chosen += p[choice[j]];
      mean += dweight[j] * weight[j];
    }
    const auto dp = [&](std::int64_t e) {
      for (std::int64_t j = 0; j < k; ++j)
        if (choice[j] == e) return pulled[e] + (k == 1 ? dweight[j] : (dweight[j] - mean) / chosen);
      return pulled[e];
    };
    for (std::int64_t e = 0; e < E; ++e) sum += p[e] * dp(e);
    for (std::int64_t e = 0; e < E; ++e) dlogits[r * E + e] = T(p[e] * (dp(e) - sum));
  });
}

/// A thread copies one channel of one choice. 8 R k C bytes move.
template <class T>
void scatter(cudaStream_t stream, T* rows, const T* x, const std::int32_t* places, std::int64_t choices,
             std::int64_t k, std::int64_t C)
{
  for_each_element(stream, choices, C, [=] __device__(std::int64_t i, std::int64_t c) {
    if (places[i] >= 0) rows[places[i] * C + c] = x[i / k * C + c];
  });
}

/// A thread computes one element of y. 4 R (k + 1) C bytes move.
template <class T>
void combine(cudaStream_t stream, T* y, const T* rows, const std::int32_t* places, const float* weights,
             std::int64_t R, std::int64_t k, std::int64_t C)
{
  for_each_element(stream, R, C, [=] __device__(std::int64_t r, std::int64_t c) {
    float sum = 0;
    for (std::int64_t i = r * k; i < (r + 1) * k; ++i)
      if (places[i] >= 0) sum += (weights != nullptr ? weights[i] : 1.0f) * widen(rows[places[i] * C + c]);
    y[r * C + c] = T(sum);
  });
}

/// A thread computes the gradients of one choice: a row, and a weight. 12 R k C bytes move.
template <class T>
void combine_backward(cudaStream_t stream, T* drows, float* dweights, const T* dy, const T* rows,
                      const std::int32_t* places, const float* weights, std::int64_t choices, std::int64_t k,
                      std::int64_t C)
{
  for_each(stream, choices, [=] __device__(std::int64_t i) {
    float sum = 0;
    for (std::int64_t c = 0; c < C && places[i] >= 0; ++c) {
      const float above = widen(dy[i / k * C + c]);
      const std::int64_t at = places[i] * C + c;
      sum += above * widen(rows[at]);
      drows[at] = T(weights[i] * above);
    }
    dweights[i] = sum;
  });
}

}  // namespace

void CudaReferenceKernels::route(const Tensor& probabilities, const Tensor& choices, const Tensor& weights,
                                 const Tensor& logits) const
{
  choose_experts(gpu(),
                 {probabilities.data<float>(), weights.data<float>(), choices.data<std::int32_t>(),
                  logits.extent(1), choices.extent(1)},
                 logits.data<float>(), logits.extent(0));
}

void CudaReferenceKernels::route_backward(const Tensor& dlogits, const Tensor& dweights,
                                          const Tensor& probabilities, const Tensor& choices, const Tensor& weights,
                                          const Tensor& pull) const
{
  const std::int64_t R = probabilities.extent(0);
  const RouterView of{probabilities.data<float>(), weights.data<float>(), choices.data<std::int32_t>(),
                      probabilities.extent(1), choices.extent(1)};
  with_gpu_type(dlogits.type(), [&]<class T>(T) {
    router_backward(gpu(), dlogits.data<T>(), dweights.data<float>(), of, pull.data<float>(), R,
                    R / pull.extent(0));
  });
}

void CudaReferenceKernels::scatter_rows(const Tensor& rows, const Tensor& x, const Tensor& places) const
{
  const std::int64_t R = places.extent(0), k = places.extent(1);
  with_gpu_type(x.type(), [&]<class T>(T) {
    scatter(gpu(), rows.data<T>(), x.data<T>(), places.data<std::int32_t>(), R * k, k, x.elements() / R);
  });
}

void CudaReferenceKernels::combine_rows(const Tensor& y, const Tensor& rows, const Tensor& places,
                                        const Tensor& weights) const
{
  const std::int64_t R = places.extent(0);
  with_gpu_type(y.type(), [&]<class T>(T) {
    combine(gpu(), y.data<T>(), rows.data<T>(), places.data<std::int32_t>(),
            weights.empty() ? nullptr : weights.data<float>(), R, places.extent(1), y.elements() / R);
  });
}

void CudaReferenceKernels::combine_rows_backward(const Tensor& drows, const Tensor& dweights, const Tensor& dy,
                                                 const Tensor& rows, const Tensor& places,
                                                 const Tensor& weights) const
{
  const std::int64_t R = places.extent(0), k = places.extent(1);
  with_gpu_type(dy.type(), [&]<class T>(T) {
    combine_backward(gpu(), drows.data<T>(), dweights.data<float>(), dy.data<T>(), rows.data<T>(),
                     places.data<std::int32_t>(), weights.data<float>(), R * k, k, dy.elements() / R);
  });
}

}  // namespace rankwise
