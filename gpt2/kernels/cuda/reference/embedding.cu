#include "gpt2/kernels/cuda/reference/reference.hpp"
#include "gpt2/kernels/dropout_mask.hpp"
#include "gpt2/kernels/ordered_sum.hpp"

namespace rankwise {

namespace {

/// A thread computes one element of y. 4 (2 R C + R) bytes move.
template <class T>
void look_up(cudaStream_t stream, T* y, const T* wte, const std::int32_t* tokens, std::int64_t R, std::int64_t C,
             Range vocabulary)
{
  for_each_element(stream, R, C, [=] __device__(std::int64_t r, std::int64_t c) {
    const std::int64_t v = tokens[r];
    y[r * C + c] = vocabulary.contains(v) ? wte[(v - vocabulary.first) * C + c] : T(0.0f);
  });
}

/// A thread has one channel of one row. It adds all rows of its token if its row is the first of them, so every
/// token that occurs has one thread per channel. 4 (R C + R) bytes move, and 8 C for each token that occurs.
template <class To, class From>
void add_rows_of_tokens(cudaStream_t stream, To* dwte, const From* dx, const std::int32_t* tokens, std::int64_t R,
                        std::int64_t C, Range vocabulary, SumOrder order)
{
  for_each_element(stream, R, C, [=] __device__(std::int64_t r, std::int64_t c) {
    const std::int32_t v = tokens[r];
    if (!vocabulary.contains(v)) return;
    for (std::int64_t before = 0; before < r; ++before)
      if (tokens[before] == v) return;
    const float all = stacked_sum(order.leaves(), [&](std::int64_t leaf) {
      const Range rows = order.run(leaf, 0);
      float sum = 0;
      for (std::int64_t i = rows.first; i < rows.end(); ++i)
        if (tokens[i] == v) sum += widen(dx[i * C + c]);
      return sum;
    });
    add_to(dwte[(v - vocabulary.first) * C + c], all);
  });
}

/// A thread computes one element of x. 8 R C bytes move, and 4 T C.
template <class T>
void add_positions(cudaStream_t stream, T* x, const T* y, const T* wpe, Rows rows, std::int64_t C, DropoutMask mask)
{
  for_each_element(stream, rows.count(), C, [=] __device__(std::int64_t r, std::int64_t c) {
    const std::int64_t position = rows.tokens.first + r % rows.tokens.count;
    const float sum = widen(y[r * C + c]) + widen(wpe[position * C + c]);
    x[r * C + c] = T(sum * static_cast<float>(mask.factor(r, c)));
  });
}

/// A thread computes one element of dwpe. 4 (R C + 2 T C) bytes move.
template <class To, class From>
void add_sequences(cudaStream_t stream, To* dwpe, const From* dx, Rows rows, std::int64_t C)
{
  const std::int64_t T = rows.tokens.count;
  const SumOrder order = SumOrder::sequences(rows.sequences.count);
  for_each_element(stream, T, C, [=] __device__(std::int64_t t, std::int64_t c) {
    add_to(dwpe[(rows.tokens.first + t) * C + c],
           ordered_sum(order, [&](std::int64_t b) { return widen(dx[(b * T + t) * C + c]); }));
  });
}

}  // namespace

void CudaReferenceKernels::token_forward(const Tensor& y, const Tensor& wte, const Tensor& tokens,
                                         Range vocabulary) const
{
  const std::int64_t R = tokens.elements();
  with_gpu_type(y.type(), [&]<class T>(T) {
    look_up(gpu(), y.data<T>(), wte.data<T>(), tokens.data<std::int32_t>(), R, y.elements() / R, vocabulary);
  });
}

void CudaReferenceKernels::token_backward(const Tensor& dwte, const Tensor& dx, const Tensor& tokens,
                                          Range vocabulary, const SumOrder& order) const
{
  // forward:   y[r] = wte[token[r]]
  // gradient:  dwte[v] += sum of dx[r] over the rows r whose token is v
  const std::int64_t R = tokens.elements();
  with_gpu_type(dwte.type(), [&]<class To>(To) {
    with_gpu_type(dx.type(), [&]<class From>(From) {
      add_rows_of_tokens(gpu(), dwte.data<To>(), dx.data<From>(), tokens.data<std::int32_t>(), R, dx.elements() / R,
                         vocabulary, order);
    });
  });
}

void CudaReferenceKernels::position_forward(const Tensor& x, const Tensor& y, const Tensor& wpe, const Rows& rows,
                                            const Dropout& dropout) const
{
  with_gpu_type(x.type(), [&]<class T>(T) {
    add_positions(gpu(), x.data<T>(), y.data<T>(), wpe.data<T>(), rows, x.elements() / rows.count(),
                  DropoutMask(dropout));
  });
}

void CudaReferenceKernels::position_backward(const Tensor& dwpe, const Tensor& dx, const Rows& rows) const
{
  // forward:   x[b, t] = y[b, t] + wpe[t]
  // gradient:  dwpe[t] += sum over b of dx[b, t]
  with_gpu_type(dwpe.type(), [&]<class To>(To) {
    with_gpu_type(dx.type(), [&]<class From>(From) {
      add_sequences(gpu(), dwpe.data<To>(), dx.data<From>(), rows, dx.elements() / rows.count());
    });
  });
}

}  // namespace rankwise
