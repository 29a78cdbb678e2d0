#include "gpt2/kernels/reference/reference.hpp"

namespace rankwise {

void ReferenceKernels::residual_forward(const Tensor& out, const Tensor& x, const Tensor& y, const Tensor& bias,
                                        const Dropout& dropout) const
{
  with_real_type(x.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    T* const to = out.data<T>();
    const T *const stream = x.data<T>(), *const branch = y.data<T>(), *const shift = bias.data<T>();
    const std::int64_t C = bias.elements(), R = x.elements() / C;
    const DropoutMask mask(dropout);
    // out[r, c] = x[r, c] + factor[r, c] (y[r, c] + bias[c]); the factor is 0 or 1 / (1 - rate)
#pragma omp parallel for
    for (std::int64_t r = 0; r < R; ++r)
      for (std::int64_t c = 0; c < C; ++c)
        to[r * C + c] = T(widen(stream[r * C + c]) +
                          (widen(branch[r * C + c]) + widen(shift[c])) * static_cast<A>(mask.factor(r, c)));
  });
}

void ReferenceKernels::dropout(const Tensor& y, const Tensor& x, const Dropout& dropout) const
{
  // forward:   y[r, c] = factor[r, c] x[r, c]
  // gradient:  dx[r, c] = factor[r, c] dy[r, c]
  with_real_type(x.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    T* const to = y.data<T>();
    const T* const from = x.data<T>();
    const std::int64_t R = dropout.rows.count(), C = x.elements() / R;
    const DropoutMask mask(dropout);
#pragma omp parallel for
    for (std::int64_t r = 0; r < R; ++r)
      for (std::int64_t c = 0; c < C; ++c)
        to[r * C + c] = T(widen(from[r * C + c]) * static_cast<A>(mask.factor(r, c)));
  });
}

void ReferenceKernels::copy(const Matrix& to, const Matrix& from) const
{
  check(to.rows == from.rows && to.columns == from.columns, "a matrix is copied to one of other sizes");
  const auto copied = [&]<class To, class From>(To, From) {
    const TypedMatrix<To> out(to);
    const TypedMatrix<From> in(from);
#pragma omp parallel for
    for (std::int64_t i = 0; i < to.rows; ++i)
      for (std::int64_t j = 0; j < to.columns; ++j) out(i, j) = To(static_cast<Accumulator<To>>(widen(in(i, j))));
  };
  with_real_type(to.data.type(), [&]<class To>(To) {
    with_real_type(from.data.type(), [&]<class From>(From) { copied(To(), From()); });
  });
}

}  // namespace rankwise
