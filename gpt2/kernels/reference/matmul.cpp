#include "gpt2/kernels/reference/reference.hpp"

namespace rankwise {

namespace {

/// The product of two matrices, plus a bias if there is one:
///
///     out[i, j] = (sum over k of a[i, k] b[k, j]) + bias[j]
///
/// with out (m, n) of type O, and a (m, K), b (K, n) and bias (n) of type T. With @p accumulate the result is added
/// to out[i, j]. The K terms are added in @p order: those of a leaf one by one, the leaves by tree_sum(). Sums are
/// computed in Accumulator<T> and rounded once, to O.
template <class O, class T>
void multiply_plainly(const Matrix& out, const Matrix& a, const Matrix& b, const SumOrder& order,
                      const Tensor& bias, bool accumulate)
{
  using A = Accumulator<T>;
  const TypedMatrix<O> to(out);
  const TypedMatrix<T> left(a), right(b);
  for (std::int64_t i = 0; i < out.rows; ++i)
    for (std::int64_t j = 0; j < out.columns; ++j) {
      // sum over k of a[i, k] b[k, j], leaf by leaf
      A sum = ordered_sum(order, [&](std::int64_t k) { return widen(left(i, k)) * widen(right(k, j)); });
      // + bias[j], then one rounding.
      if (!bias.empty()) sum += widen(bias.data<T>()[j]);
      to(i, j) = O(accumulate ? widen(to(i, j)) + sum : sum);
    }
}

}  // namespace

void plain_matmul(const Matrix& out, const Matrix& a, const Matrix& b, const SumOrder& order, const Tensor& bias,
                  bool accumulate)
{
  with_matmul_types(out, a, b, order,
                    [&]<class O, class T>(O, T) { multiply_plainly<O, T>(out, a, b, order, bias, accumulate); });
}

}  // namespace rankwise
