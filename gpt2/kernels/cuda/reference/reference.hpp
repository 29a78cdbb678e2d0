#pragma once

#include <cstdint>

#include "common/cuda/launch.hpp"
#include "gpt2/kernels/cuda/gpu_types.hpp"
#include "gpt2/kernels/kernels.hpp"
#include "gpt2/kernels/ordered_sum.hpp"

/// @file
/// The reference kernels of a GPU, for f32 and bf16. For source files of CUDA (.cu) only.
///
/// Plain code without shared memory: a thread computes one output, or one row if a sum over it is needed, and adds
/// in the same order as the reference kernels of the CPU. They are compiled without contraction to fused multiply-adds,
/// and exponentials, logarithms and tangents are portable_math.hpp's, so they give the same bits. The comment of each kernel says which outputs a thread computes, and the
/// least number of bytes that it must move in f32. Sums are computed in f32 and rounded once, when they are stored.

namespace rankwise {

/// The reference family of a GPU; each kernel is in the file of its layer.
class CudaReferenceKernels : public KernelFamily {
 public:
  /// @param memory         memory of a GPU.
  /// @param stream         stream of the same GPU; outlives the kernels.
  /// @param scratch_bytes  bytes of that memory to allocate.
  CudaReferenceKernels(const DeviceMemory& memory, Stream& stream,
                       std::int64_t scratch_bytes = gpu_workspace_bytes);

  void matmul(const Matrix& out, const Matrix& a, const Matrix& b, const SumOrder& order, const Tensor& bias,
              bool accumulate) const override;
  void bias_backward(const Tensor& dbias, const Tensor& dy, const SumOrder& order) const override;
  void token_forward(const Tensor& y, const Tensor& wte, const Tensor& tokens, Range vocabulary) const override;
  void token_backward(const Tensor& dwte, const Tensor& dx, const Tensor& tokens, Range vocabulary,
                      const SumOrder& order) const override;
  void position_forward(const Tensor& x, const Tensor& y, const Tensor& wpe, const Rows& rows,
                        const Dropout& dropout) const override;
  void position_backward(const Tensor& dwpe, const Tensor& dx, const Rows& rows) const override;
  void norm_forward(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x, const Tensor& weight,
                    const Tensor& bias, double epsilon) const override;
  void norm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                     const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                     const SumOrder& order) const override;
  void attention_forward(const Tensor& y, const Tensor& log_sum_exp, const Tensor& qkv, const AttentionShape& shape,
                         const Dropout& dropout) const override;
  void cached_attention_forward(const Tensor& y, const Tensor& cache, const Tensor& qkv,
                                const AttentionShape& shape, Range tokens) const override;
  void attention_backward(const Tensor& dqkv, const Tensor& dy, const Tensor& y, const Tensor& log_sum_exp,
                          const Tensor& qkv, const AttentionShape& shape, const Dropout& dropout) const override;
  void attention_partial(const SoftmaxPartial& partial, const Tensor& qkv, const Tensor& kv,
                         const AttentionShape& shape, const AttentionRuns& runs,
                         const Dropout& dropout) const override;
  void attention_merge(const SoftmaxPartial& into, const SoftmaxPartial& from) const override;
  void attention_divide(const Tensor& y, const Tensor& log_sum_exp, const SoftmaxPartial& partial) const override;
  void attention_partial_backward(const Tensor& dq, const Tensor& dkv, const Tensor& dy, const Tensor& y,
                                  const Tensor& log_sum_exp, const Tensor& qkv, const Tensor& kv,
                                  const AttentionShape& shape, const AttentionRuns& runs,
                                  const Dropout& dropout) const override;
  void copy(const Matrix& to, const Matrix& from) const override;
  void bias_gelu_forward(const Tensor& y, const Tensor& x, const Tensor& bias) const override;
  void gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x) const override;
  void tanh_forward(const Tensor& y, const Tensor& x) const override;
  void tanh_backward(const Tensor& dx, const Tensor& dy, const Tensor& y) const override;
  void residual_forward(const Tensor& out, const Tensor& x, const Tensor& y, const Tensor& bias,
                        const Dropout& dropout) const override;
  void dropout(const Tensor& y, const Tensor& x, const Dropout& dropout) const override;
  void row_maximum(const Tensor& maximum, const Tensor& logits, std::int64_t valid) const override;
  void row_sum(const Tensor& sum, const Tensor& target_logit, const Tensor& logits, const Tensor& maximum,
               const Tensor& targets, Range vocabulary, const SumOrder& order) const override;
  ExactScalar loss_sum(const Tensor& sum, const Tensor& maximum, const Tensor& target_logit,
                       const Tensor& targets) const override;
  void loss_backward(const Tensor& logits, const Tensor& maximum, const Tensor& sum, const Tensor& targets,
                     Range vocabulary, double weight) const override;
  void route(const Tensor& probabilities, const Tensor& choices, const Tensor& weights,
             const Tensor& logits) const override;
  void route_backward(const Tensor& dlogits, const Tensor& dweights, const Tensor& probabilities,
                      const Tensor& choices, const Tensor& weights, const Tensor& pull) const override;
  void scatter_rows(const Tensor& rows, const Tensor& x, const Tensor& places) const override;
  void combine_rows(const Tensor& y, const Tensor& rows, const Tensor& places,
                    const Tensor& weights) const override;
  void combine_rows_backward(const Tensor& drows, const Tensor& dweights, const Tensor& dy, const Tensor& rows,
                             const Tensor& places, const Tensor& weights) const override;
  void add(const Tensor& into, const Tensor& from) const override;
  void maximum(const Tensor& into, const Tensor& from) const override;
  ExactScalar squared_norm(const Tensor& x) const override;
  std::optional<std::int64_t> first_not_finite(const Tensor& x) const override;
  void adamw(const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& gradient, const AdamWStep& step,
             const Tensor& rounded) const override;
  void convert(const Tensor& to, const Tensor& from) const override;

 protected:
  /// CUDA's handle of the stream; makes its GPU the current one of the calling thread.
  cudaStream_t gpu() const { return cuda_stream(stream_); }

  Stream& stream_;  ///< stream of the kernels
  Buffer scratch_;  ///< f32: partial sums; kernels run one after the other, so each may use all of it
};

/// Copies the keys and values of @p qkv, (R, 3 D heads), into the rows @p tokens of @p cache, (T, 2 D heads).
void append_keys_and_values(cudaStream_t stream, const Tensor& cache, const Tensor& qkv, Range tokens);

/// to += sum, rounded once: accumulates a gradient.
template <class T>
__device__ void add_to(T& to, float sum)
{
  to = T(widen(to) + sum);
}

/// Calls f(row, column) for one element of a matrix with contiguous rows.
template <class F>
struct AtRowAndColumn {
  F f;                   ///< function to call
  std::int64_t columns;  ///< number of columns of the matrix

  /// Calls f for element @p i.
  __device__ void operator()(std::int64_t i) const { f(i / columns, i % columns); }
};

/// Calls f(row, column) for all elements of a matrix as for_each()
/// does; neighbouring threads have neighbouring columns.
/// @param f  a lambda that begins with `[=] __device__`.
template <class F>
void for_each_element(cudaStream_t stream, std::int64_t rows, std::int64_t columns, F f,
                      SourceLocation where = SourceLocation::current())
{
  for_each(stream, rows * columns, AtRowAndColumn<F>{f, columns}, where);
}

}  // namespace rankwise
