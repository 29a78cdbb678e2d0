#include "gpt2/kernels/cuda/reference/ordered_sum.hpp"
#include "gpt2/kernels/cuda/reference/reference.hpp"
#include "gpt2/kernels/dropout_mask.hpp"

namespace rankwise {

namespace {

/// A thread has one element of y. 4 (2 R C + R) bytes move.
void look_up(cudaStream_t stream, float* y, const float* wte, const std::int32_t* tokens, std::int64_t R,
             std::int64_t C, Range vocabulary)
{
  for_each_element(stream, R, C, [=] __device__(std::int64_t r, std::int64_t c) {
    const std::int64_t v = tokens[r];
    y[r * C + c] = vocabulary.contains(v) ? wte[(v - vocabulary.first) * C + c] : 0.0f;
  });
}

/// A thread has one channel of one row, and adds the rows of its token up if it is the first of them: so every token that
/// occurs has one thread a channel. 4 (R C + R) bytes move, and 8 C for each token that occurs.
void add_rows_of_tokens(cudaStream_t stream, float* dwte, const float* dx, const std::int32_t* tokens,
                        std::int64_t R, std::int64_t C, Range vocabulary, SumOrder order)
{
  for_each_element(stream, R, C, [=] __device__(std::int64_t r, std::int64_t c) {
    const std::int32_t v = tokens[r];
    if (!vocabulary.contains(v)) return;
    for (std::int64_t before = 0; before < r; ++before)
      if (tokens[before] == v) return;
    dwte[(v - vocabulary.first) * C + c] += stacked_sum(order.leaves(), [&](std::int64_t leaf) {
      const Range rows = order.run(leaf, 0);
      float sum = 0;
      for (std::int64_t i = rows.first; i < rows.end(); ++i)
        if (tokens[i] == v) sum += dx[i * C + c];
      return sum;
    });
  });
}

/// A thread has one element of x. 8 R C bytes move, and 4 T C.
void add_positions(cudaStream_t stream, float* x, const float* y, const float* wpe, Rows rows, std::int64_t C,
                   DropoutMask mask)
{
  for_each_element(stream, rows.count(), C, [=] __device__(std::int64_t r, std::int64_t c) {
    const std::int64_t position = rows.tokens.first + r % rows.tokens.count;
    x[r * C + c] = (y[r * C + c] + wpe[position * C + c]) * static_cast<float>(mask.factor(r, c));
  });
}

/// A thread has one element of dwpe. 4 (R C + 2 T C) bytes move.
void add_sequences(cudaStream_t stream, float* dwpe, const float* dx, Rows rows, std::int64_t C)
{
  const std::int64_t T = rows.tokens.count;
  const SumOrder order = SumOrder::sequences(rows.sequences.count);
  for_each_element(stream, T, C, [=] __device__(std::int64_t t, std::int64_t c) {
    dwpe[(rows.tokens.first + t) * C + c] +=
        ordered_sum(order, [&](std::int64_t b) { return dx[(b * T + t) * C + c]; });
  });
}

}  // namespace

void CudaReferenceKernels::token_forward(const Tensor& y, const Tensor& wte, const Tensor& tokens,
                                         Range vocabulary) const
{
  const std::int64_t R = tokens.elements();
  look_up(gpu(), y.data<float>(), wte.data<float>(), tokens.data<std::int32_t>(), R, y.elements() / R, vocabulary);
}

void CudaReferenceKernels::token_backward(const Tensor& dwte, const Tensor& dx, const Tensor& tokens,
                                          Range vocabulary, const SumOrder& order) const
{
  // y[r] = wte[token[r]]
  const std::int64_t R = tokens.elements();
  add_rows_of_tokens(gpu(), dwte.data<float>(), dx.data<float>(), tokens.data<std::int32_t>(), R, dx.elements() / R,
                     vocabulary, order);
}

void CudaReferenceKernels::position_forward(const Tensor& x, const Tensor& y, const Tensor& wpe, const Rows& rows,
                                            const Dropout& dropout) const
{
  add_positions(gpu(), x.data<float>(), y.data<float>(), wpe.data<float>(), rows, x.elements() / rows.count(),
                DropoutMask(dropout));
}

void CudaReferenceKernels::position_backward(const Tensor& dwpe, const Tensor& dx, const Rows& rows) const
{
  // x[b, t] = y[b, t] + wpe[t]
  add_sequences(gpu(), dwpe.data<float>(), dx.data<float>(), rows, dx.elements() / rows.count());
}

}  // namespace rankwise
