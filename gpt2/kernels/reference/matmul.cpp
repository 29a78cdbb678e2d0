#include "gpt2/kernels/reference/reference.hpp"

namespace rankwise {

namespace {

/// The product of two matrices, plus a bias if there is one:
///
///     out[i, j] = (sum over k of a[i, k] b[k, j]) + bias[j]
///
/// with out (m, n) of type O, and a (m, K), b (K, n) and bias (n) of type T. With @p accumulate the result is added
/// to out[i, j]. The K terms are added in @p order: those of a leaf one by one, each by a fused multiply-add, the leaves by
/// tree_sum(). Sums are computed in Accumulator<T> and rounded once, to O.
template <class O, class T>
void multiply(const Matrix& out, const Matrix& a, const Matrix& b, const SumOrder& order, const T* bias,
              bool accumulate)
{
  using A = Accumulator<T>;
  const TypedMatrix<O> to(out);
  const TypedMatrix<T> left(a), right(b);
#pragma omp parallel for
  for (std::int64_t i = 0; i < out.rows; ++i)
    for (std::int64_t j = 0; j < column_blocks(out.columns); ++j) {
      const ColumnBlock block = column_block(j, out.columns);
      // sum over k of a[i, k] b[k, j], leaf by leaf
      const auto sums = sum_rows<A>(order, block, [&](std::int64_t k, std::int64_t column) {
        return Factors<A>{widen(left(i, k)), widen(right(k, column))};
      });
      // + bias[j], then one rounding.
      for (int w = 0; w < block.count; ++w) {
        O& element = to(i, block.first + w);
        A sum = sums.at[static_cast<std::size_t>(w)];
        if (bias != nullptr) sum += widen(bias[block.first + w]);
        element = O(accumulate ? widen(element) + sum : sum);
      }
    }
}

}  // namespace

void ReferenceKernels::matmul(const Matrix& out, const Matrix& a, const Matrix& b, const SumOrder& order,
                              const Tensor& bias, bool accumulate) const
{
  with_matmul_types(out, a, b, order,
                    [&]<class O, class T>(O, T) { multiply<O, T>(out, a, b, order, bias.data<T>(), accumulate); });
}

void ReferenceKernels::bias_backward(const Tensor& dbias, const Tensor& dy, const SumOrder& order) const
{
  // forward:   y[i, j] = x[i, j] + bias[j]
  // gradient:  dbias[j] += sum over i of dy[i, j]
  with_real_type(dy.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const T* const from = dy.data<T>();
    const GradientAccumulator<A> to(dbias);
    const std::int64_t n = dbias.elements();
#pragma omp parallel for
    for (std::int64_t j = 0; j < column_blocks(n); ++j) {
      const ColumnBlock block = column_block(j, n);
      const auto sums = sum_rows<A>(
          order, block, [&](std::int64_t r, std::int64_t column) { return widen(from[r * n + column]); });
      for (int w = 0; w < block.count; ++w) to[block.first + w] += sums.at[static_cast<std::size_t>(w)];
    }
  });
}

}  // namespace rankwise
