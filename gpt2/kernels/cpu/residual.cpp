#include <algorithm>

#include "gpt2/kernels/cpu/cpu.hpp"
#include "gpt2/kernels/cpu/vector_math.hpp"

namespace rankwise {

namespace {

/// Calls @p use(channel, factor) for the C channels of a token;
/// each call of Philox gives the factors of four channels.
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
  const std::int64_t C = bias.elements(), R = x.elements() / C, tokens = dropout.rows.tokens.count;
  const DropoutMask mask(dropout);
  with_fast_type(x.type(), [&]<class T>(T) {
    T* const to = out.data<T>();
    const T *const stream = x.data<T>(), *const branch = y.data<T>(), *const shift = bias.data<T>();
    const auto sum = [&](std::int64_t r, std::int64_t c, float factor) {
      return narrow<T>(widen(stream[r * C + c]) + (widen(branch[r * C + c]) + widen(shift[c])) * factor);
    };
#pragma omp parallel for
    for (std::int64_t r = 0; r < R; ++r) {
      if (dropout.active())
        for_each_factor(mask, r / tokens, r % tokens, C,
                        [&](std::int64_t c, float factor) { to[r * C + c] = sum(r, c, factor); });
      else
#pragma omp simd
        for (std::int64_t c = 0; c < C; ++c) to[r * C + c] = sum(r, c, 1);
    }
  });
}

void CpuKernels::dropout(const Tensor& y, const Tensor& x, const Dropout& dropout) const
{
  // forward:   y[r, c] = factor[r, c] x[r, c]
  // gradient:  dx[r, c] = factor[r, c] dy[r, c]
  const std::int64_t R = dropout.rows.count(), C = x.elements() / R, tokens = dropout.rows.tokens.count;
  const DropoutMask mask(dropout);
  with_fast_type(x.type(), [&]<class T>(T) {
    T* const to = y.data<T>();
    const T* const from = x.data<T>();
#pragma omp parallel for
    for (std::int64_t r = 0; r < R; ++r)
      for_each_factor(mask, r / tokens, r % tokens, C, [&](std::int64_t c, float factor) {
        to[r * C + c] = narrow<T>(widen(from[r * C + c]) * factor);
      });
  });
}

}  // namespace rankwise
