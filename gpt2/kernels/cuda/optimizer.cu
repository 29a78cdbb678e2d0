#include <cmath>

#include "gpt2/kernels/cuda/cuda.hpp"
#include "gpt2/kernels/cuda/packs.hpp"
#include "gpt2/kernels/cuda/sum_of_terms.hpp"

namespace rankwise {

namespace {

/// Thread: 16 bytes. Reads both, writes one: three tensors of n.
template <class T>
void add_terms(cudaStream_t stream, T* into, const T* from, std::int64_t n)
{
  constexpr int N = pack_size<T>;
  for_each_pack<N>(stream, 1, n, [=] __device__(const PackPlace& at) {
    Pack<N> sum = load_pack<N>(into + at.index, at.count);
    sum += load_pack<N>(from + at.index, at.count);
    store_pack(into + at.index, sum, at.count);
  });
}

}  // namespace

void CudaKernels::add(const Tensor& into, const Tensor& from) const
{
  check(into.elements() == from.elements(), "tensors to be added have different sizes");
  with_gpu_type(into.type(), [&]<class T>(T) { add_terms(on_, into.data<T>(), from.data<T>(), into.elements()); });
}

namespace {

/// The sum of the squares of x, in f64. Thread: every (threads of the grid)-th pack. Reads x once.
template <class T>
ExactScalar sum_of_squares(Stream& stream, cudaStream_t on, const Tensor& scratch, const T* x, std::int64_t n)
{
  constexpr int N = pack_size<T>;
  return sum_of_terms(stream, on, scratch, divided_up(n, N), [=] __device__(std::int64_t i) {
    const Pack<N> pack = load_pack<N>(x + N * i, n - N * i);
    double sum = 0;
    for (const float value : pack.at) sum += static_cast<double>(value) * static_cast<double>(value);
    return sum;
  });
}

}  // namespace

ExactScalar CudaKernels::squared_norm(const Tensor& x) const
{
  return with_gpu_type(x.type(), [&]<class T>(T) {
    return sum_of_squares(stream_, on_, scratch_.tensor(), x.data<T>(), x.elements());
  });
}

namespace {

/// The constants of an AdamWStep in f32, with everything computed that does not depend on the element.
struct AdamWFactors {
  explicit AdamWFactors(const AdamWStep& step)
      : scale(static_cast<float>(step.gradient_scale)),
        b1(static_cast<float>(step.beta1)),
        b2(static_cast<float>(step.beta2)),
        fresh1(static_cast<float>(1 - step.beta1)),
        fresh2(static_cast<float>(1 - step.beta2)),
        rate(static_cast<float>(step.learning_rate / (1 - std::pow(step.beta1, static_cast<double>(step.number))))),
        root2(static_cast<float>(1 / (1 - std::pow(step.beta2, static_cast<double>(step.number))))),
        kept(static_cast<float>(1 - step.learning_rate * step.weight_decay)),
        epsilon(static_cast<float>(step.epsilon))
  {
  }
  float scale, b1, b2, fresh1, fresh2, rate, root2, kept, epsilon;
};

/// The tensors that an update changes.
struct AdamWState {
  float *p, *m, *v;
  bf16* rounded;  // null without a rounded copy
};

/// Thread: four elements. Reads p, m, v and the gradient, writes p, m, v and the rounded copy: 28 n bytes in f32.
template <class T>
void update(cudaStream_t stream, const AdamWState& to, const T* gradient, std::int64_t n, const AdamWFactors& f)
{
  constexpr int N = 4;
  for_each_pack<N>(stream, 1, n, [=] __device__(const PackPlace& at) {
    Pack<N> weight = load_pack<N>(to.p + at.index, at.count), first = load_pack<N>(to.m + at.index, at.count);
    Pack<N> second = load_pack<N>(to.v + at.index, at.count);
    const Pack<N> sum = load_pack<N>(gradient + at.index, at.count);
    for (int i = 0; i < N; ++i) {
      const float g = f.scale * sum.at[i];
      first.at[i] = f.b1 * first.at[i] + f.fresh1 * g;
      second.at[i] = f.b2 * second.at[i] + f.fresh2 * (g * g);
      weight.at[i] = weight.at[i] * f.kept - f.rate * first.at[i] / (std::sqrt(second.at[i] * f.root2) + f.epsilon);
    }
    store_pack(to.p + at.index, weight, at.count);
    store_pack(to.m + at.index, first, at.count);
    store_pack(to.v + at.index, second, at.count);
    if (to.rounded != nullptr) store_pack(to.rounded + at.index, weight, at.count);
  });
}

}  // namespace

void CudaKernels::adamw(const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& gradient,
                        const AdamWStep& step, const Tensor& rounded) const
{
  const AdamWState to{p.data<float>(), m.data<float>(), v.data<float>(),
                      rounded.empty() ? nullptr : rounded.data<bf16>()};
  with_gpu_type(gradient.type(),
                [&]<class T>(T) { update(on_, to, gradient.data<T>(), p.elements(), AdamWFactors(step)); });
}

}  // namespace rankwise
