#include <algorithm>

#include "gpt2/kernels/cpu/cpu.hpp"

namespace rankwise {

namespace {

/// Calls @p use(channel, factor) for the C channels of a token; each call of Philox serves four of them.
template <class Use>
void for_each_factor(const DropoutMask& mask, std::int64_t sequence, std::int64_t token, std::int64_t C, Use&& use)
{
  constexpr std::int64_t words = 4;
  for (std::int64_t c = 0; c < C; c += words) {
    const std::array<double, words> factors = mask.factors(sequence, token, 0, c);
    for (std::int64_t i = 0; i < std::min(words, C - c); ++i)
      use(c + i, static_cast<float>(factors[static_cast<std::size_t>(i)]));
  }
}

}  // namespace

void CpuKernels::residual_forward(const Tensor& out, const Tensor& x, const Tensor& y, const Tensor& bias,
                                  const Dropout& dropout) const
{
  float* const to = out.data<float>();
  const float *const stream = x.data<float>(), *const branch = y.data<float>(), *const shift = bias.data<float>();
  const std::int64_t C = bias.elements(), R = x.elements() / C, T = dropout.rows.tokens.count;
  const DropoutMask mask(dropout);
#pragma omp parallel for
  for (std::int64_t r = 0; r < R; ++r) {
    if (dropout.active())
      for_each_factor(mask, r / T, r % T, C, [&](std::int64_t c, float factor) {
        to[r * C + c] = stream[r * C + c] + (branch[r * C + c] + shift[c]) * factor;
      });
    else
#pragma omp simd
      for (std::int64_t c = 0; c < C; ++c) to[r * C + c] = stream[r * C + c] + (branch[r * C + c] + shift[c]);
  }
}

void CpuKernels::dropout_backward(const Tensor& dy, const Tensor& dx, const Dropout& dropout) const
{
  // x[r, c] = y[r, c] factor(r, c)
  float* const to = dy.data<float>();
  const float* const from = dx.data<float>();
  const std::int64_t R = dropout.rows.count(), C = dx.elements() / R, T = dropout.rows.tokens.count;
  const DropoutMask mask(dropout);
#pragma omp parallel for
  for (std::int64_t r = 0; r < R; ++r)
    for_each_factor(mask, r / T, r % T, C,
                    [&](std::int64_t c, float factor) { to[r * C + c] = from[r * C + c] * factor; });
}

}  // namespace rankwise
