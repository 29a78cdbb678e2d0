#include "gpt2/kernels/reference/reference.hpp"
#include "gpt2/kernels/router_formula.hpp"

namespace rankwise {

void ReferenceKernels::route(const Tensor& probabilities, const Tensor& choices, const Tensor& weights,
                             const Tensor& logits) const
{
  with_real_type(logits.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t R = logits.extent(0), E = logits.extent(1), k = choices.extent(1);
#pragma omp parallel for
    for (std::int64_t r = 0; r < R; ++r)
      route_row(probabilities.data<A>() + r * E, choices.data<std::int32_t>() + r * k, weights.data<A>() + r * k,
                logits.data<A>() + r * E, E, k);
  });
}

void ReferenceKernels::route_backward(const Tensor& dlogits, const Tensor& dweights, const Tensor& probabilities,
                                      const Tensor& choices, const Tensor& weights, const Tensor& pull) const
{
  with_real_type(dlogits.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::int64_t R = probabilities.extent(0), E = probabilities.extent(1), k = choices.extent(1);
    const std::int64_t tokens = R / pull.extent(0);
#pragma omp parallel for
    for (std::int64_t r = 0; r < R; ++r)
      route_row_backward(dlogits.data<T>() + r * E, dweights.data<A>() + r * k, probabilities.data<A>() + r * E,
                         choices.data<std::int32_t>() + r * k, weights.data<A>() + r * k,
                         pull.data<A>() + r / tokens * E, E, k);
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
      const std::int64_t channels = place[i] >= 0 ? C : 0, at = place[i] * C;
      const T *const above = dy.data<T>() + i / k * C, *const row = rows.data<T>() + at;
      dweights.data<A>()[i] = interleaved_sum({0, channels}, [&](std::int64_t c) {
        return Factors<A>{widen(above[c]), widen(row[c])};
      });
      for (std::int64_t c = 0; c < channels; ++c) drows.data<T>()[at + c] = T(weight[i] * widen(above[c]));
    }
  });
}

}  // namespace rankwise
