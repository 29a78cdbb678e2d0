#pragma once

#include "common/cuda/cuda.hpp"
#include "gpt2/kernels/cuda/cublas.hpp"
#include "gpt2/kernels/cuda/reference/reference.hpp"

/// @file
/// The fast kernels of a GPU, for f32 and bf16: the specification of each is the reference kernel of the same name.
///
/// Sources of their speed: matrix products by cuBLAS, on tensor cores and with GELU in the same kernel; attention
/// in tiles of shared memory; coalesced memory accesses of 16 bytes per thread; one pass over memory where the
/// reference takes several; and sums in an order that suits the threads; they ignore SumOrder. No sum depends on
/// which thread finishes first: two runs give the same bits. For source files of CUDA (.cu) only.

namespace rankwise {

/// The fast family; each kernel is in the file of its layer. Those that would gain nothing are inherited from the
/// reference: attention between runs of tokens, what routes rows to experts, and what is small or seldom called.
class CudaKernels final : public CudaReferenceKernels {
 public:
  /// @param memory    memory of a GPU; gpu_workspace_bytes of it are allocated.
  /// @param stream    stream of the same GPU; outlives the kernels.
  /// @param products  precision of f32 matrix products.
  CudaKernels(const DeviceMemory& memory, Stream& stream, Products products);

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
  void bias_gelu_forward(const Tensor& y, const Tensor& x, const Tensor& bias) const override;
  void gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x) const override;
  void matmul_gelu_forward(const Tensor& y, const Matrix& x, const Matrix& a, const Matrix& b,
                           const SumOrder& order, const Tensor& bias) const override;
  void matmul_gelu_backward(const Matrix& dx, const Matrix& dy, const Matrix& b, const SumOrder& order,
                            const Tensor& x) const override;
  void residual_forward(const Tensor& out, const Tensor& x, const Tensor& y, const Tensor& bias,
                        const Dropout& dropout) const override;
  void dropout(const Tensor& y, const Tensor& x, const Dropout& dropout) const override;
  void row_maximum(const Tensor& maximum, const Tensor& logits, std::int64_t valid) const override;
  void row_sum(const Tensor& sum, const Tensor& target_logit, const Tensor& logits, const Tensor& maximum,
               const Tensor& targets, Range vocabulary, const SumOrder& order) const override;
  void row_statistics(const Tensor& maximum, const Tensor& sum, const Tensor& target_logit, const Tensor& logits,
                      const Tensor& targets, Range vocabulary, const SumOrder& order) const override;
  ExactScalar loss_sum(const Tensor& sum, const Tensor& maximum, const Tensor& target_logit,
                       const Tensor& targets) const override;
  void loss_backward(const Tensor& logits, const Tensor& maximum, const Tensor& sum, const Tensor& targets,
                     Range vocabulary, double weight) const override;
  void add(const Tensor& into, const Tensor& from) const override;
  ExactScalar squared_norm(const Tensor& x) const override;
  void adamw(const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& gradient, const AdamWStep& step,
             const Tensor& rounded) const override;

 private:
  /// True if cuBLAS is asked to fuse a GELU into the product before it.
  bool fuses_gelu(const Product& product) const;

  cudaStream_t on_;  // CUDA's handle of the same stream
  Buffer workspace_;
  CublasLt cublas_;
  bool epilogues_pay_;  // true if a product with fused GELU takes less time than two separate kernels
};

}  // namespace rankwise
