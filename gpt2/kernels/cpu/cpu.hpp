#pragma once

#include <cstdint>
#include <vector>

#include "common/base/error.hpp"
#include "gpt2/kernels/reference/reference.hpp"

/// @file
/// The fast kernels of the CPU, for f32 and bf16: the
/// specification of each is the reference kernel of the same name.
///
/// Sources of their speed: matrix products by a library, attention in blocks that stay in cache, an exponential
/// that the compiler can vectorise, one pass over memory where the reference takes several, and sums in the order
/// that vector registers and threads favour; they ignore SumOrder. With the same number of threads they give the
/// same bits.

namespace rankwise {

/// Calls @p f with a value of the C++ type that @p type stands for: f32 or bf16.
/// @throws Error  for any other type.
template <class F>
decltype(auto) with_fast_type(DType type, F&& f)
{
  if (type == DType::f32) return f(float{});
  check(type == DType::bf16, "the fast kernels of the CPU are for f32 and bf16");
  return f(bf16{});
}

/// Scratch memory for the threads of one kernel at a time. It grows on demand, so its size is constant from the
/// second step on. It holds about 100 KiB, 4 T bytes, and for bf16 20 T D bytes per thread, and is not counted in
/// the memory ledger.
class ThreadScratch {
 public:
  /// Reserves a buffer of @p floats numbers per thread; to be called outside of parallel regions.
  void reserve(std::int64_t floats);
  /// The buffer of one thread, with undefined content.
  float* of(int thread) const;

 private:
  mutable std::vector<float> memory_;
  std::int64_t floats_ = 0;
};

/// The fast family; each kernel is in the file of its layer. Kernels
/// that would gain nothing are inherited from the reference.
class CpuKernels final : public ReferenceKernels {
 public:
  void matmul(const Matrix& out, const Matrix& a, const Matrix& b, const SumOrder& order, const Tensor& bias,
              bool accumulate) const override;
  void bias_backward(const Tensor& dbias, const Tensor& dy, const SumOrder& order) const override;
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
  void attention_partial_backward(const Tensor& dq, const Tensor& dkv, const Tensor& dy, const Tensor& y,
                                  const Tensor& log_sum_exp, const Tensor& qkv, const Tensor& kv,
                                  const AttentionShape& shape, const AttentionRuns& runs,
                                  const Dropout& dropout) const override;
  void bias_gelu_forward(const Tensor& y, const Tensor& x, const Tensor& bias) const override;
  void gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x) const override;
  void residual_forward(const Tensor& out, const Tensor& x, const Tensor& y, const Tensor& bias,
                        const Dropout& dropout) const override;
  void dropout(const Tensor& y, const Tensor& x, const Dropout& dropout) const override;
  void row_maximum(const Tensor& maximum, const Tensor& logits, std::int64_t valid) const override;
  void row_sum(const Tensor& sum, const Tensor& target_logit, const Tensor& logits, const Tensor& maximum,
               const Tensor& targets, Range vocabulary, const SumOrder& order) const override;
  void row_statistics(const Tensor& maximum, const Tensor& sum, const Tensor& target_logit, const Tensor& logits,
                      const Tensor& targets, Range vocabulary, const SumOrder& order) const override;
  void loss_backward(const Tensor& logits, const Tensor& maximum, const Tensor& sum, const Tensor& targets,
                     Range vocabulary, double weight) const override;
  ExactScalar squared_norm(const Tensor& x) const override;
  void adamw(const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& gradient, const AdamWStep& step,
             const Tensor& rounded) const override;

 private:
  mutable ThreadScratch scratch_;
};

}  // namespace rankwise
