#include "gpt2/kernels/reference/reference.hpp"

namespace rankwise {

DropoutMask::DropoutMask(const Dropout& dropout)
    : dropout_(dropout),
      threshold_(static_cast<std::uint32_t>(dropout.rate * 0x1p32)),
      kept_(1 / (1 - dropout.rate))
{
}

std::array<double, 4> DropoutMask::factors(std::int64_t sequence, std::int64_t token, std::int64_t head,
                                           std::int64_t channel) const
{
  const PhiloxWords words = random_words(dropout_.seed, dropout_.purpose,
                                         {.step = dropout_.step,
                                          .sequence = dropout_.rows.sequences.first + sequence,
                                          .token = dropout_.rows.tokens.first + token,
                                          .layer = dropout_.layer,
                                          .head = head,
                                          .channel = channel});
  std::array<double, 4> factors;
  for (std::size_t i = 0; i < 4; ++i) factors[i] = words[i] < threshold_ ? 0 : kept_;
  return factors;
}

double DropoutMask::factor(std::int64_t row, std::int64_t channel) const
{
  if (!dropout_.active()) return 1;
  const std::int64_t T = dropout_.rows.tokens.count;
  return factors(row / T, row % T, 0, channel)[static_cast<std::size_t>(channel % 4)];
}

void ReferenceKernels::residual_forward(const Tensor& out, const Tensor& x, const Tensor& y, const Tensor& bias,
                                        const Dropout& dropout) const
{
  with_real_type(x.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    T* const to = out.data<T>();
    const T *const stream = x.data<T>(), *const branch = y.data<T>(), *const shift = bias.data<T>();
    const std::int64_t C = bias.elements(), R = x.elements() / C;
    const DropoutMask mask(dropout);
#pragma omp parallel for
    for (std::int64_t r = 0; r < R; ++r)
      for (std::int64_t c = 0; c < C; ++c)
        to[r * C + c] = T(widen(stream[r * C + c]) +
                          (widen(branch[r * C + c]) + widen(shift[c])) * static_cast<A>(mask.factor(r, c)));
  });
}

void ReferenceKernels::dropout_backward(const Tensor& dy, const Tensor& dx, const Dropout& dropout) const
{
  // x[r, c] = y[r, c] factor(r, c)
  with_real_type(dx.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    T* const to = dy.data<T>();
    const T* const from = dx.data<T>();
    const std::int64_t R = dropout.rows.count(), C = dx.elements() / R;
    const DropoutMask mask(dropout);
#pragma omp parallel for
    for (std::int64_t r = 0; r < R; ++r)
      for (std::int64_t c = 0; c < C; ++c)
        to[r * C + c] = T(widen(from[r * C + c]) * static_cast<A>(mask.factor(r, c)));
  });
}

}  // namespace rankwise
