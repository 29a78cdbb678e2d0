#include "gpt2/kernels/cuda/reference/reference.hpp"
#include "gpt2/kernels/router_formula.hpp"

namespace rankwise {

namespace {

/// Results of the router, row by row.
struct RouterView {
  float *probabilities, *weights;
  std::int32_t* choices;
  std::int64_t E, k;
};

/// A thread computes one row. 4 R (2 E + 2 k) bytes move.
void choose_experts(cudaStream_t stream, RouterView to, const float* logits, std::int64_t R)
{
  for_each(stream, R, [=] __device__(std::int64_t r) {
    route_row(to.probabilities + r * to.E, to.choices + r * to.k, to.weights + r * to.k, logits + r * to.E, to.E,
              to.k);
  });
}

/// A thread computes one row of dlogits. 4 R (2 E + 3 k) bytes move.
template <class T>
void router_backward(cudaStream_t stream, T* dlogits, const float* dweights, RouterView of, const float* pull,
                     std::int64_t R, std::int64_t tokens)
{
  for_each(stream, R, [=] __device__(std::int64_t r) {
    const std::int64_t E = of.E, k = of.k;
    route_row_backward(dlogits + r * E, dweights + r * k, of.probabilities + r * E, of.choices + r * k,
                       of.weights + r * k, pull + r / tokens * E, E, k);
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
    const std::int64_t channels = places[i] >= 0 ? C : 0, at = places[i] * C;
    const T* const above = dy + i / k * C;
    dweights[i] = interleaved_sum({0, channels}, [&](std::int64_t c) {
      return Factors<float>{widen(above[c]), widen(rows[at + c])};
    });
    for (std::int64_t c = 0; c < channels; ++c) drows[at + c] = T(weights[i] * widen(above[c]));
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
