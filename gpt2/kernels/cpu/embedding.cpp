#include <algorithm>
#include <array>

#include "gpt2/kernels/cpu/cpu.hpp"
#include "gpt2/kernels/cpu/vector_math.hpp"

namespace rankwise {

namespace {

/// token_backward() for activations of type T and a gradient in f32.
template <class T>
void add_rows_to_tokens(const Tensor& dwte, const Tensor& dx, const Tensor& tokens, Range vocabulary)
{
  // forward:   y[r] = wte[token[r]]
  // gradient:  dwte[v] += sum of dx[r] over the rows r whose token is v
  // Columns are divided among threads, so that no two threads add to the same element.
  constexpr std::int64_t stripe = 64;
  const std::int32_t* const token = tokens.data<std::int32_t>();
  const T* const from = dx.data<T>();
  float* const to = dwte.data<float>();
  const std::int64_t R = tokens.elements(), C = dx.elements() / R;
#pragma omp parallel for
  for (std::int64_t first = 0; first < C; first += stripe) {
    const std::int64_t last = std::min(first + stripe, C);
    for (std::int64_t r = 0; r < R; ++r) {
      if (!vocabulary.contains(token[r])) continue;
      float* const row = to + (token[r] - vocabulary.first) * C;
#pragma omp simd
      for (std::int64_t c = first; c < last; ++c) row[c] += widen(from[r * C + c]);
    }
  }
}

}  // namespace

void CpuKernels::token_backward(const Tensor& dwte, const Tensor& dx, const Tensor& tokens, Range vocabulary,
                                const SumOrder& order) const
{
  if (dwte.type() == DType::bf16)  // the rows of a token have to be summed before they are rounded
    ReferenceKernels::token_backward(dwte, dx, tokens, vocabulary, order);
  else
    with_fast_type(dx.type(), [&]<class T>(T) { add_rows_to_tokens<T>(dwte, dx, tokens, vocabulary); });
}

void CpuKernels::position_forward(const Tensor& x, const Tensor& y, const Tensor& wpe, const Rows& rows,
                                  const Dropout& dropout) const
{
  if (dropout.active()) {
    ReferenceKernels::position_forward(x, y, wpe, rows, dropout);
    return;
  }
  const std::int64_t C = x.elements() / rows.count();
  with_fast_type(x.type(), [&]<class T>(T) {
    T* const to = x.data<T>();
    const T *const from = y.data<T>(), *const table = wpe.data<T>();
#pragma omp parallel for
    for (std::int64_t r = 0; r < rows.count(); ++r) {
      const T* const position = table + (rows.tokens.first + r % rows.tokens.count) * C;
#pragma omp simd
      for (std::int64_t c = 0; c < C; ++c) to[r * C + c] = narrow<T>(widen(from[r * C + c]) + widen(position[c]));
    }
  });
}

namespace {

/// position_backward() for given types of activations and gradients.
template <class T, class G>
void add_sequences(const Tensor& dwpe, const Tensor& dx, const Rows& rows)
{
  constexpr std::int64_t stripe = 256;  // channels that are summed together
  const T* const from = dx.data<T>();
  G* const to = dwpe.data<G>();
  const std::int64_t tokens = rows.tokens.count, C = dx.elements() / rows.count();
#pragma omp parallel for collapse(2)
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t first = 0; first < C; first += stripe) {
      const std::int64_t count = std::min(stripe, C - first);
      G* const position = to + (rows.tokens.first + t) * C + first;
      std::array<float, stripe> sums;
      for (std::int64_t c = 0; c < count; ++c) sums[static_cast<std::size_t>(c)] = widen(position[c]);
      for (std::int64_t b = 0; b < rows.sequences.count; ++b)
#pragma omp simd
        for (std::int64_t c = 0; c < count; ++c)
          sums[static_cast<std::size_t>(c)] += widen(from[(b * tokens + t) * C + first + c]);
      for (std::int64_t c = 0; c < count; ++c) position[c] = narrow<G>(sums[static_cast<std::size_t>(c)]);
    }
}

}  // namespace

void CpuKernels::position_backward(const Tensor& dwpe, const Tensor& dx, const Rows& rows) const
{
  // forward:   x[b, t] = y[b, t] + wpe[t]
  // gradient:  dwpe[t] += sum over b of dx[b, t]
  with_fast_type(dx.type(), [&]<class T>(T) {
    with_fast_type(dwpe.type(), [&]<class G>(G) { add_sequences<T, G>(dwpe, dx, rows); });
  });
}

}  // namespace rankwise
