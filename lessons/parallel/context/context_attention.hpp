#pragma once

#include <cstdint>
#include <span>

#include "gpt2/model.hpp"
#include "lessons/frame/run.hpp"
#include "lessons/parallel/context/token_runs.hpp"

/// @file
/// Attention over a sequence of which each rank has two runs of tokens.

namespace rankwise {

/// One run of tokens of a micro-batch, as its rank sees it: B sequences, R = B T / (2 c) rows. Where tensor parallelism
/// divides the heads too, C is that of this rank's heads.
struct TokenRun {
  Range tokens;             ///< run of each sequence
  const Workspace& work;    ///< scratch, of this run alone
  const Activations& kept;  ///< from the forward to the backward pass
  MicroBatch batch{};       ///< inputs, targets and positions
  ModelTensors gradient{};  ///< to which the backward pass of the run adds
  Tensor doutput{};         ///< (R, C) gradient of a branch's output

  /// (R, C) gradient of the heads' outputs, between the two halves of an attention branch's backward pass.
  Tensor dhidden() const { return work.wide.slice({0, work.wide.elements() / 4}); }
  /// (R, 3 C) gradient of q, k and v.
  Tensor dinner() const { return work.wide.slice({work.wide.elements() / 4, work.wide.elements() / 4 * 3}); }
};

/// Attention of all tokens, whichever rank has the keys. The only layer in which a token meets another one; all other
/// layers compute the rows of a rank alone.
class ContextAttention {
 public:
  virtual ~ContextAttention() = default;

  /// Computes `hidden` and `log_sum_exp` of a branch from `inner`, for both runs of this rank.
  /// @param i     number of the branch.
  /// @param runs  the rank's two runs.
  virtual void forward(const Branch& branch, std::size_t i, std::span<TokenRun> runs) = 0;
  /// Computes dinner() from dhidden(), for both runs.
  virtual void backward(const Branch& branch, std::size_t i, std::span<TokenRun> runs) = 0;
};

/// Channels of the heads that a rank computes: C, or a part of it where tensor parallelism divides the heads.
inline std::int64_t head_channels_here(const ModelConfig& config, const ActivationShape& shape)
{
  return config.channels / shape.part.count;
}

/// Floating-point operations of the forward pass of attention for some pairs of a query and a key, over @p channels: a
/// score and a weighted value of two operations per channel each.
constexpr std::int64_t attention_flops(std::int64_t pairs, std::int64_t channels)
{
  return 4 * pairs * channels;
}

}  // namespace rankwise
