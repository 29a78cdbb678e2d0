#pragma once

#include <cstdint>

#include "common/cuda/launch.hpp"
#include "gpt2/kernels/cuda/gpu_types.hpp"
#include "gpt2/kernels/kernels.hpp"

/// @file
/// The reference kernels of a GPU, for f32 and bf16. For source files of CUDA (.cu) only.
///
/// Plain code without shared memory: a thread computes one output, or one row where a sum over it is needed, and adds in
/// the same order as the reference kernels of the CPU. They are compiled without contraction, so where no exponential,
/// logarithm or tangent is involved, which every maker's library rounds in its own way, they have the same bits. Each says
/// which outputs a thread has, and the least number of bytes that it must move in f32. Sums are made in f32 and rounded
/// once, when they are stored.

namespace rankwise {

/// The reference family of a GPU; each kernel stands in the file of its layer.
class CudaReferenceKernels final : public Kernels {
 public:
  /// @param memory  of a GPU; gpu_workspace_bytes are taken of it.
  /// @param stream  of the same GPU; outlives the kernels.
  CudaReferenceKernels(const DeviceMemory& memory, Stream& stream);

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
                    const Tensor& bias) const override;
  void norm_backward(const Tensor& dx, const Tensor& dweight, const Tensor& dbias, const Tensor& dy,
                     const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& weight,
                     const SumOrder& order) const override;
  void attention_forward(const Tensor& y, const Tensor& log_sum_exp, const Tensor& qkv, const AttentionShape& shape,
                         const Dropout& dropout) const override;
  void cached_attention_forward(const Tensor& y, const Tensor& cache, const Tensor& qkv,
                                const AttentionShape& shape, Range tokens) const override;
  void attention_backward(const Tensor& dqkv, const Tensor& dy, const Tensor& y, const Tensor& log_sum_exp,
                          const Tensor& qkv, const AttentionShape& shape, const Dropout& dropout) const override;
  void bias_gelu_forward(const Tensor& y, const Tensor& x, const Tensor& bias) const override;
  void gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x) const override;
  void residual_forward(const Tensor& out, const Tensor& x, const Tensor& y, const Tensor& bias,
                        const Dropout& dropout) const override;
  void dropout_backward(const Tensor& dy, const Tensor& dx, const Dropout& dropout) const override;
  void row_maximum(const Tensor& maximum, const Tensor& logits, std::int64_t valid) const override;
  void row_sum(const Tensor& sum, const Tensor& target_logit, const Tensor& logits, const Tensor& maximum,
               const Tensor& targets, Range vocabulary, const SumOrder& order) const override;
  void row_statistics(const Tensor& maximum, const Tensor& sum, const Tensor& target_logit, const Tensor& logits,
                      const Tensor& targets, Range vocabulary, const SumOrder& order) const override;
  ExactScalar loss_sum(const Tensor& sum, const Tensor& maximum, const Tensor& target_logit,
                       const Tensor& targets) const override;
  void loss_backward(const Tensor& logits, const Tensor& maximum, const Tensor& sum, const Tensor& targets,
                     Range vocabulary) const override;
  void add(const Tensor& into, const Tensor& from) const override;
  void maximum(const Tensor& into, const Tensor& from) const override;
  ExactScalar squared_norm(const Tensor& x) const override;
  std::optional<std::int64_t> first_not_finite(const Tensor& x) const override;
  void adamw(const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& gradient, const AdamWStep& step,
             const Tensor& rounded) const override;
  void convert(const Tensor& to, const Tensor& from) const override;

 private:
  /// The stream, as CUDA knows it; the calling thread then works with its GPU.
  cudaStream_t gpu() const { return cuda_stream(stream_); }

  Stream& stream_;
  Buffer scratch_;  // u8: partial sums on their way to the host
};

/// The value of an element as the type that sums are made in.
template <class T>
__device__ float widened(T value)
{
  return static_cast<float>(value);
}

/// to += sum, rounded once: how a gradient accumulates.
template <class T>
__device__ void add_to(T& to, float sum)
{
  to = T(widened(to) + sum);
}

/// Calls f(row, column) for one element of a matrix whose rows are laid end to end.
template <class F>
struct AtRowAndColumn {
  F f;                   ///< what is called
  std::int64_t columns;  ///< of the matrix

  /// Calls it for element @p i.
  __device__ void operator()(std::int64_t i) const { f(i / columns, i % columns); }
};

/// Calls f(row, column) for all elements of a matrix as for_each() does; neighbouring threads have neighbouring columns.
/// @param f  a lambda that begins with `[=] __device__`.
template <class F>
void for_each_element(cudaStream_t stream, std::int64_t rows, std::int64_t columns, F f,
                      SourceLocation where = SourceLocation::current())
{
  for_each(stream, rows * columns, AtRowAndColumn<F>{f, columns}, where);
}

}  // namespace rankwise
