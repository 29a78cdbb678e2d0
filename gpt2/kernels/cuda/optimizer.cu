#include <algorithm>
#include <cmath>

#include "gpt2/kernels/cuda/cuda.hpp"
#include "gpt2/kernels/cuda/fours.hpp"
#include "gpt2/kernels/cuda/reduce.hpp"

namespace rankwise {

namespace {

/// Thread: four elements. Reads both, writes one: 12 n bytes.
void add_terms(cudaStream_t stream, float* into, const float* from, std::int64_t n)
{
  for_each_four(stream, 1, n, [=] __device__(const FourPlace& at) {
    Four sum = load_four(into + at.index, at.count);
    const Four term = load_four(from + at.index, at.count);
    for (int i = 0; i < 4; ++i) sum.at[i] += term.at[i];
    store_four(into + at.index, sum, at.count);
  });
}

}  // namespace

void CudaKernels::add(const Tensor& into, const Tensor& from) const
{
  check(into.elements() == from.elements(), "tensors of different sizes are added");
  add_terms(on_, into.data<float>(), from.data<float>(), into.elements());
}

namespace {

/// sums[block] = the sum of the squares of the block's elements, in f64.
///
/// Thread i: fours i, i + threads of the grid, ... Reads 4 n bytes.
__global__ void __launch_bounds__(block_threads) sum_squares(double* sums, const float* x, std::int64_t n)
{
  double sum = 0;
  for (std::int64_t i = 4 * thread_number(); i < n; i += 4 * thread_count()) {
    const Four four = load_four(x + i, n - i);
    for (const float value : four.at) sum += static_cast<double>(value) * static_cast<double>(value);
  }
  sum = block_reduce(sum, Plus(), &shared_memory<double>());
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

}  // namespace

ExactScalar CudaKernels::squared_norm(const Tensor& x) const
{
  const std::int64_t n = x.elements();
  Grid grid = grid_over(on_, divided_up(n, 4));
  grid.shared_bytes = most_warps * bytes_of(DType::f64);
  const Tensor sums(scratch_.tensor().raw(), DType::f64, {grid.blocks.x});
  launch(grid, sum_squares, sums.data<double>(), x.data<float>(), n);
  ExactScalar total;
  for (const double sum : to_host<double>(stream_, sums)) total.add(sum);
  return total;
}

namespace {

/// first becomes the number of the first element that is NaN or infinite, if one is before the number that it holds.
///
/// Thread i: elements i, i + threads of the grid, ... until it finds one. Reads 4 n bytes.
__global__ void __launch_bounds__(block_threads)
    find_not_finite(unsigned long long* first, const float* x, std::int64_t n)
{
  for (std::int64_t i = thread_number(); i < n; i += thread_count())
    if (!std::isfinite(x[i])) {
      atomicMin(first, static_cast<unsigned long long>(i));
      return;
    }
}

}  // namespace

std::optional<std::int64_t> CudaKernels::first_not_finite(const Tensor& x) const
{
  const Tensor first(scratch_.tensor().raw(), DType::i64, {1});
  check_cuda(cudaMemsetAsync(first.raw(), 0xFF, static_cast<std::size_t>(first.bytes()), on_),
             "setting a number to none");
  const std::int64_t n = x.elements();
  launch(grid_over(on_, n), find_not_finite, reinterpret_cast<unsigned long long*>(first.raw()), x.data<float>(),
         n);
  const std::int64_t found = to_host<std::int64_t>(stream_, first)[0];
  return found < 0 ? std::nullopt : std::optional(found);
}

namespace {

/// The numbers of an AdamWStep in f32, with what does not depend on the element worked out.
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

/// Thread: four elements. Reads four tensors, writes three: 28 n bytes.
void update(cudaStream_t stream, float* p, float* m, float* v, const float* gradient, std::int64_t n,
            const AdamWFactors& f)
{
  for_each_four(stream, 1, n, [=] __device__(const FourPlace& at) {
    Four weight = load_four(p + at.index, at.count), first = load_four(m + at.index, at.count);
    Four second = load_four(v + at.index, at.count);
    const Four sum = load_four(gradient + at.index, at.count);
    for (int i = 0; i < 4; ++i) {
      const float g = f.scale * sum.at[i];
      first.at[i] = f.b1 * first.at[i] + f.fresh1 * g;
      second.at[i] = f.b2 * second.at[i] + f.fresh2 * (g * g);
      weight.at[i] = weight.at[i] * f.kept - f.rate * first.at[i] / (std::sqrt(second.at[i] * f.root2) + f.epsilon);
    }
    store_four(p + at.index, weight, at.count);
    store_four(m + at.index, first, at.count);
    store_four(v + at.index, second, at.count);
  });
}

}  // namespace

void CudaKernels::adamw(const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& gradient,
                        const AdamWStep& step) const
{
  update(on_, p.data<float>(), m.data<float>(), v.data<float>(), gradient.data<float>(), p.elements(),
         AdamWFactors(step));
}

}  // namespace rankwise
