#pragma once

#include <cstdint>
#include <vector>

#include "gpt2/kernels/reference/reference.hpp"

/// @file
/// The exact kernels: the bits of the reference kernels at the machine's speed. Matrix products and attention are computed in
/// tiles of outputs; the others are the reference's own.

namespace rankwise {

/// Scratch memory that grows on demand, aligned to 64 bytes. It is not counted in the memory ledger.
class TileScratch {
 public:
  /// @p floats numbers of undefined content; those of an earlier call are lost.
  float* reserve(std::int64_t floats)
  {
    const auto registers = static_cast<std::size_t>(column_blocks(floats));
    if (memory_.size() < registers) memory_ = std::vector<Lanes<float, lane_count>>(registers);
    return memory_.data()->at.data();
  }

 private:
  std::vector<Lanes<float, lane_count>> memory_;
};

/// The exact family. One kernel of a family runs at a time.
class ExactKernels final : public ReferenceKernels {
 public:
  void matmul(const Matrix& out, const Matrix& a, const Matrix& b, const SumOrder& order, const Tensor& bias,
              bool accumulate) const override;
  void attention_forward(const Tensor& y, const Tensor& log_sum_exp, const Tensor& qkv, const AttentionShape& shape,
                         const Dropout& dropout) const override;
  void attention_backward(const Tensor& dqkv, const Tensor& dy, const Tensor& y, const Tensor& log_sum_exp,
                          const Tensor& qkv, const AttentionShape& shape, const Dropout& dropout) const override;
  void attention_partial(const SoftmaxPartial& partial, const Tensor& qkv, const Tensor& kv,
                         const AttentionShape& shape, const AttentionRuns& runs,
                         const Dropout& dropout) const override;
  void attention_partial_backward(const Tensor& dq, const Tensor& dkv, const Tensor& dy, const Tensor& y,
                                  const Tensor& log_sum_exp, const Tensor& qkv, const Tensor& kv,
                                  const AttentionShape& shape, const AttentionRuns& runs,
                                  const Dropout& dropout) const override;

 private:
  mutable TileScratch scratch_;
};

}  // namespace rankwise
