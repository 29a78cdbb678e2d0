#include <algorithm>

#include "gpt2/kernels/cpu/cpu.hpp"

namespace rankwise {

void CpuKernels::token_backward(const Tensor& dwte, const Tensor& dx, const Tensor& tokens, Range vocabulary,
                                const SumOrder&) const
{
  // y[r] = wte[token[r]]; threads share the columns, so that no two of them add to the same element
  constexpr std::int64_t stripe = 64;
  const std::int32_t* const token = tokens.data<std::int32_t>();
  const float* const from = dx.data<float>();
  float* const to = dwte.data<float>();
  const std::int64_t R = tokens.elements(), C = dx.elements() / R;
#pragma omp parallel for
  for (std::int64_t first = 0; first < C; first += stripe) {
    const std::int64_t last = std::min(first + stripe, C);
    for (std::int64_t r = 0; r < R; ++r) {
      if (!vocabulary.contains(token[r])) continue;
      float* const row = to + (token[r] - vocabulary.first) * C;
#pragma omp simd
      for (std::int64_t c = first; c < last; ++c) row[c] += from[r * C + c];
    }
  }
}

void CpuKernels::position_forward(const Tensor& x, const Tensor& y, const Tensor& wpe, const Rows& rows,
                                  const Dropout& dropout) const
{
  if (dropout.active()) {
    ReferenceKernels::position_forward(x, y, wpe, rows, dropout);
    return;
  }
  float* const to = x.data<float>();
  const float *const from = y.data<float>(), *const table = wpe.data<float>();
  const std::int64_t C = x.elements() / rows.count();
#pragma omp parallel for
  for (std::int64_t r = 0; r < rows.count(); ++r) {
    const float* const position = table + (rows.tokens.first + r % rows.tokens.count) * C;
#pragma omp simd
    for (std::int64_t c = 0; c < C; ++c) to[r * C + c] = from[r * C + c] + position[c];
  }
}

void CpuKernels::position_backward(const Tensor& dwpe, const Tensor& dx, const Rows& rows) const
{
  // x[b, t] = y[b, t] + wpe[t]
  const float* const from = dx.data<float>();
  float* const to = dwpe.data<float>();
  const std::int64_t T = rows.tokens.count, C = dx.elements() / rows.count();
#pragma omp parallel for
  for (std::int64_t t = 0; t < T; ++t)
    for (std::int64_t b = 0; b < rows.sequences.count; ++b)
#pragma omp simd
      for (std::int64_t c = 0; c < C; ++c) to[(rows.tokens.first + t) * C + c] += from[(b * T + t) * C + c];
}

}  // namespace rankwise
