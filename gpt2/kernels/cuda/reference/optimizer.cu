#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/portable_math.hpp"
#include "gpt2/kernels/cuda/reference/reference.hpp"

namespace rankwise {

namespace {

/// A thread computes one element. 12 n bytes move.
template <class T>
void add_elements(cudaStream_t stream, T* into, const T* from, std::int64_t n)
{
  for_each(stream, n, [=] __device__(std::int64_t i) { add_to(into[i], widen(from[i])); });
}

/// A thread computes one element. 12 n bytes move.
template <class T>
void take_larger(cudaStream_t stream, T* into, const T* from, std::int64_t n)
{
  for_each(stream, n, [=] __device__(std::int64_t i) {
    if (widen(from[i]) > widen(into[i])) into[i] = from[i];
  });
}

/// A thread computes one of @p count sums of squares, over
/// elements i, i + count, ... 4 n bytes move, and 48 per sum.
template <class T>
void sum_squares(cudaStream_t stream, ExactScalar* sums, std::int64_t count, const T* x, std::int64_t n)
{
  for_each(stream, count, [=] __device__(std::int64_t i) {
    ExactScalar sum;
    for (std::int64_t j = i; j < n; j += count) {
      const auto value = static_cast<double>(widen(x[j]));
      sum.add(value * value);
    }
    sums[i] = sum;
  });
}

/// A thread checks one element. 4 n bytes move.
/// @param first  set to the index of the first element that is not finite, if that is smaller than its value.
template <class T>
void find_not_finite(cudaStream_t stream, unsigned long long* first, const T* x, std::int64_t n)
{
  for_each(stream, n, [=] __device__(std::int64_t i) {
    if (!std::isfinite(widen(x[i]))) atomicMin(first, static_cast<unsigned long long>(i));
  });
}

/// The constants of an AdamW update, the same for every element.
struct AdamWNumbers {
  explicit AdamWNumbers(const AdamWStep& step)
      : scale(static_cast<float>(step.gradient_scale)),
        b1(static_cast<float>(step.beta1)),
        b2(static_cast<float>(step.beta2)),
        fresh1(static_cast<float>(1 - step.beta1)),
        fresh2(static_cast<float>(1 - step.beta2)),
        correction1(static_cast<float>(1 - portable::power(step.beta1, step.number))),
        correction2(static_cast<float>(1 - portable::power(step.beta2, step.number))),
        kept(static_cast<float>(1 - step.learning_rate * step.weight_decay)),
        learning_rate(static_cast<float>(step.learning_rate)),
        epsilon(static_cast<float>(step.epsilon))
  {
  }
  float scale, b1, b2, fresh1, fresh2, correction1, correction2, kept, learning_rate, epsilon;
};

/// A thread updates one weight. 28 n bytes move.
template <class T>
void update(cudaStream_t stream, float* p, float* m, float* v, const T* gradient, std::int64_t n, AdamWNumbers a)
{
  for_each(stream, n, [=] __device__(std::int64_t i) {
    const float g = a.scale * widen(gradient[i]);
    m[i] = a.b1 * m[i] + a.fresh1 * g;
    v[i] = a.b2 * v[i] + a.fresh2 * g * g;
    const float mhat = m[i] / a.correction1, vhat = v[i] / a.correction2;
    p[i] = p[i] * a.kept - a.learning_rate * mhat / (std::sqrt(vhat) + a.epsilon);
  });
}

}  // namespace

void CudaReferenceKernels::add(const Tensor& into, const Tensor& from) const
{
  check(into.elements() == from.elements(), "tensors to be added have different sizes");
  with_gpu_type(into.type(),
                [&]<class T>(T) { add_elements(gpu(), into.data<T>(), from.data<T>(), into.elements()); });
}

void CudaReferenceKernels::maximum(const Tensor& into, const Tensor& from) const
{
  check(into.elements() == from.elements(), "tensors to be compared have different sizes");
  with_gpu_type(into.type(),
                [&]<class T>(T) { take_larger(gpu(), into.data<T>(), from.data<T>(), into.elements()); });
}

ExactScalar CudaReferenceKernels::squared_norm(const Tensor& x) const
{
  constexpr std::int64_t enough = 1 << 14;  // threads
  std::vector<ExactScalar> sums(static_cast<std::size_t>(std::min(enough, x.elements())));
  const auto count = static_cast<std::int64_t>(sums.size());
  const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(ExactScalar));
  check(bytes <= scratch_.tensor().bytes(), "the sums of squares exceed the scratch of the kernels");
  const Tensor on_gpu(scratch_.tensor().raw(), DType::u8, {bytes});
  with_gpu_type(x.type(), [&]<class T>(T) {
    sum_squares(gpu(), reinterpret_cast<ExactScalar*>(on_gpu.raw()), count, x.data<T>(), x.elements());
  });
  stream_.copy(Tensor(sums.data(), DType::u8, {bytes}), on_gpu);
  stream_.synchronise();
  ExactScalar total;
  for (const ExactScalar& sum : sums) total += sum;
  return total;
}

std::optional<std::int64_t> CudaReferenceKernels::first_not_finite(const Tensor& x) const
{
  const Tensor first(scratch_.tensor().raw(), DType::i64, {1});
  check_cuda(cudaMemsetAsync(first.raw(), 0xFF, static_cast<std::size_t>(first.bytes()), gpu()), "filling memory");
  with_gpu_type(x.type(), [&]<class T>(T) {
    find_not_finite(gpu(), reinterpret_cast<unsigned long long*>(first.raw()), x.data<T>(), x.elements());
  });
  const std::int64_t found = to_host<std::int64_t>(stream_, first).front();
  return found < 0 ? std::nullopt : std::optional(found);  // -1 (all bits set): none
}

void CudaReferenceKernels::adamw(const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& gradient,
                                 const AdamWStep& step, const Tensor& rounded) const
{
  with_gpu_type(gradient.type(), [&]<class T>(T) {
    update(gpu(), p.data<float>(), m.data<float>(), v.data<float>(), gradient.data<T>(), p.elements(),
           AdamWNumbers(step));
  });
  if (!rounded.empty()) convert(rounded, p);
}

namespace {

/// A thread converts one element. 8 n bytes move.
template <class To, class From>
void copy_rounded(cudaStream_t stream, To* to, const From* from, std::int64_t n)
{
  for_each(stream, n, [=] __device__(std::int64_t i) { to[i] = To(widen(from[i])); });
}

}  // namespace

void CudaReferenceKernels::convert(const Tensor& to, const Tensor& from) const
{
  check(to.elements() == from.elements(), "a tensor and its converted copy have different sizes");
  with_gpu_type(to.type(), [&]<class To>(To) {
    with_gpu_type(from.type(),
                  [&]<class From>(From) { copy_rounded(gpu(), to.data<To>(), from.data<From>(), to.elements()); });
  });
}

}  // namespace rankwise
