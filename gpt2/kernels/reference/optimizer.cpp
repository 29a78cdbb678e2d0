#include <algorithm>
#include <cmath>

#include "common/base/portable_math.hpp"
#include "gpt2/kernels/reference/reference.hpp"

namespace rankwise {

void ReferenceKernels::add(const Tensor& into, const Tensor& from) const
{
  check(into.elements() == from.elements(), "tensors to be added have different sizes");
  // into[i] += from[i]
  with_real_type(into.type(), [&]<class T>(T) {
    T* const to = into.data<T>();
    const T* const term = from.data<T>();
#pragma omp parallel for
    for (std::int64_t i = 0; i < into.elements(); ++i) to[i] = T(widen(to[i]) + widen(term[i]));
  });
}

void ReferenceKernels::maximum(const Tensor& into, const Tensor& from) const
{
  check(into.elements() == from.elements(), "tensors to be compared have different sizes");
  // into[i] = max(into[i], from[i])
  with_real_type(into.type(), [&]<class T>(T) {
    T* const to = into.data<T>();
    const T* const other = from.data<T>();
#pragma omp parallel for
    for (std::int64_t i = 0; i < into.elements(); ++i) to[i] = T(std::max(widen(to[i]), widen(other[i])));
  });
}

ExactScalar ReferenceKernels::squared_norm(const Tensor& x) const
{
  // The sum of x[i]^2 is exact, so its order does not matter; the square of an f32 number is exact in f64.
  ExactScalar sum;
  with_real_type(x.type(), [&]<class T>(T) {
    for (const T value : x.span<T>()) {
      const auto wide = static_cast<double>(widen(value));
      sum.add(wide * wide);
    }
  });
  return sum;
}

std::optional<std::int64_t> ReferenceKernels::first_not_finite(const Tensor& x) const
{
  std::optional<std::int64_t> found;
  with_real_type(x.type(), [&]<class T>(T) {
    const std::span<T> values = x.span<T>();
    const auto at =
        std::find_if(values.begin(), values.end(), [](T value) { return !std::isfinite(widen(value)); });
    if (at != values.end()) found = at - values.begin();
  });
  return found;
}

void ReferenceKernels::adamw(const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& gradient,
                             const AdamWStep& step, const Tensor& rounded) const
{
  float *const weight = p.data<float>(), *const first = m.data<float>(), *const second = v.data<float>();
  const auto scale = static_cast<float>(step.gradient_scale);
  const auto b1 = static_cast<float>(step.beta1), b2 = static_cast<float>(step.beta2);
  const auto fresh1 = static_cast<float>(1 - step.beta1), fresh2 = static_cast<float>(1 - step.beta2);
  const auto learning_rate = static_cast<float>(step.learning_rate), epsilon = static_cast<float>(step.epsilon);

  with_real_type(gradient.type(), [&]<class T>(T) {
    const T* const sum = gradient.data<T>();
    // BEGIN EXERCISE 01.3
    // Both moments start at zero. After t updates the weights in each average sum to 1 - b^t, which is divided out.
    const auto correction1 = static_cast<float>(1 - portable::power(step.beta1, step.number));
    const auto correction2 = static_cast<float>(1 - portable::power(step.beta2, step.number));
    const auto kept = static_cast<float>(1 - step.learning_rate * step.weight_decay);
#pragma omp parallel for
    for (std::int64_t i = 0; i < p.elements(); ++i) {
      // g = scale gradient;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
      const float g = scale * static_cast<float>(widen(sum[i]));
      first[i] = b1 * first[i] + fresh1 * g;
      second[i] = b2 * second[i] + fresh2 * g * g;
      // mhat = m / (1 - b1^t);  vhat = v / (1 - b2^t);  p = p (1 - lr decay) - lr mhat / (sqrt(vhat) + epsilon)
      const float mhat = first[i] / correction1, vhat = second[i] / correction2;
      weight[i] = weight[i] * kept - learning_rate * mhat / (std::sqrt(vhat) + epsilon);
    }
    // END EXERCISE
  });
  if (!rounded.empty()) convert(rounded, p);
}

void ReferenceKernels::convert(const Tensor& to, const Tensor& from) const
{
  check(to.elements() == from.elements(), "a tensor and its converted copy have different sizes");
  with_real_type(to.type(), [&]<class To>(To) {
    with_real_type(from.type(), [&]<class From>(From) {
      To* const copy = to.data<To>();
      const From* const original = from.data<From>();
#pragma omp parallel for
      for (std::int64_t i = 0; i < to.elements(); ++i)
        copy[i] = To(static_cast<Accumulator<To>>(widen(original[i])));
    });
  });
}

}  // namespace rankwise
