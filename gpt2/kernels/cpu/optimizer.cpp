#include <algorithm>
#include <cmath>

#include "gpt2/kernels/cpu/cpu.hpp"
#include "gpt2/kernels/cpu/vector_math.hpp"

namespace rankwise {

ExactScalar CpuKernels::squared_norm(const Tensor& x) const
{
  constexpr std::int64_t chunk =
      8192;  // elements that are summed in f64 before the sum is added to the slower ExactScalar
  const std::int64_t n = x.elements();
  ExactScalar total;
  with_fast_type(x.type(), [&]<class T>(T) {
    const T* const from = x.data<T>();
#pragma omp parallel
    {
      ExactScalar mine;
#pragma omp for
      for (std::int64_t first = 0; first < n; first += chunk) {
        const std::int64_t last = std::min(first + chunk, n);
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (std::int64_t i = first; i < last; ++i)
          sum += static_cast<double>(widen(from[i])) * static_cast<double>(widen(from[i]));
        mine.add(sum);
      }
#pragma omp critical
      total += mine;
    }
  });
  return total;
}

void CpuKernels::adamw(const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& gradient,
                       const AdamWStep& step, const Tensor& rounded) const
{
  float *const weight = p.data<float>(), *const first = m.data<float>(), *const second = v.data<float>();
  const auto number = static_cast<double>(step.number);
  const auto scale = static_cast<float>(step.gradient_scale);
  const auto b1 = static_cast<float>(step.beta1), b2 = static_cast<float>(step.beta2);
  const auto fresh1 = static_cast<float>(1 - step.beta1), fresh2 = static_cast<float>(1 - step.beta2);
  const auto rate = static_cast<float>(step.learning_rate / (1 - std::pow(step.beta1, number)));
  const auto root2 = static_cast<float>(1 / (1 - std::pow(step.beta2, number)));
  const auto kept = static_cast<float>(1 - step.learning_rate * step.weight_decay);
  const auto epsilon = static_cast<float>(step.epsilon);
  const auto update = [&](auto* sum, auto&& store) {
#pragma omp parallel for
    for (std::int64_t begin = 0; begin < p.elements(); begin += share) {
      for (const float* const state : {weight, first, second}) prefetch(state + begin);
      prefetch(sum + begin);
#pragma omp simd
      for (std::int64_t i = begin; i < std::min(begin + share, p.elements()); ++i) {
        const float g = scale * widen(sum[i]);
        first[i] = b1 * first[i] + fresh1 * g;
        second[i] = b2 * second[i] + fresh2 * (g * g);
        weight[i] = weight[i] * kept - rate * first[i] / (std::sqrt(second[i] * root2) + epsilon);
        store(i, weight[i]);
      }
    }
  };
  with_fast_type(gradient.type(), [&]<class G>(G) {
    if (rounded.empty()) {
      update(gradient.data<G>(), [](std::int64_t, float) {});
    } else {
      bf16* const copy = rounded.data<bf16>();
      update(gradient.data<G>(), [=](std::int64_t i, float value) { copy[i] = narrow<bf16>(value); });
    }
  });
}

}  // namespace rankwise
