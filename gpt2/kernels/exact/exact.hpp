#pragma once

#include <cstdint>
#include <vector>

#include "gpt2/kernels/reference/reference.hpp"

/// @file
/// The exact kernels: the bits of the reference kernels at the machine's speed. Matrix products and attention are computed in
/// tiles of outputs; the others are the reference's own.

namespace rankwise {

/// Numbers in memory that is aligned to 64 bytes; new ones are 0. They are scratch, and not counted in the memory ledger.
class AlignedFloats {
 public:
  /// @p floats of them.
  explicit AlignedFloats(std::int64_t floats = 0) : memory_(static_cast<std::size_t>(column_blocks(floats))) {}
  /// Makes room for @p floats numbers, without those that were there.
  float* reserve(std::int64_t floats)
  {
    const auto registers = static_cast<std::size_t>(column_blocks(floats));
    if (memory_.size() < registers) memory_ = std::vector<Lanes<float, lane_count>>(registers);
    return data();
  }
  /// The first one.
  float* data() { return memory_.data()->at.data(); }

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
  mutable AlignedFloats scratch_;
};

}  // namespace rankwise
