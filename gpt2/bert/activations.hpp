#pragma once

#include <cstdint>

#include "gpt2/activations.hpp"

/// @file
/// The activations that a BERT keeps besides those of its branches and of its logits.

namespace rankwise {

/// The activations that one micro-batch of a BERT keeps from its forward to its backward pass. Of those that it shares
/// with GPT-2, `head.input` is the output of the last branch, and `head.normalised` that of the head's norm.
class BertActivations : public Activations {
 public:
  /// Parameters and failures as for Activations.
  BertActivations(const DeviceMemory& memory, const ModelConfig& config, const ActivationShape& shape,
                  const Workspace& workspace);

  Tensor segments;  ///< (R) i32, 0 or 1
  Tensor lengths;   ///< (B) i32, tokens before the padding
  Tensor labels;    ///< (B) i32, 0: the second sentence follows the first; 1: it does not; -1: not counted

  Tensor embedding_sum;          ///< (R, C) token + position + segment
  Tensor embedding_mean;         ///< (R)
  Tensor embedding_rstd;         ///< (R)
  Tensor embedding_norm_weight;  ///< (C) copy of the parameter, which may be freed before the backward pass

  Tensor transform_inner;   ///< (R, C) before GELU
  Tensor transform_hidden;  ///< (R, C) after GELU
  Tensor pooled;            ///< (B, C) after tanh
  Tensor next_logits;       ///< (B, 2); the backward pass overwrites them with their gradient
  Tensor next_maximum;      ///< (B)
  Tensor next_sum;          ///< (B)
  Tensor next_target;       ///< (B)

  /// The rows that enter branch @p i; for i = 2 L those that enter the head. (R, C).
  const Tensor& rows_before(std::size_t i) const
  {
    return i < branches.size() ? branches[i].normalised : head.input;
  }

 private:
  BufferPool more_;
};

/// Bytes of what BertActivations adds to Activations: s (3 R C + C + B C + 2 B) + a (2 R + 3 B), and 4 R + 8 B for
/// segments, lengths and labels; s and a as for activation_bytes().
std::int64_t bert_bytes(const ModelConfig& config, const ActivationShape& shape);

}  // namespace rankwise
