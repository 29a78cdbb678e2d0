#pragma once

#include <cstdint>
#include <span>

#include "gpt2/model.hpp"
#include "lessons/14_context_parallel/token_runs.hpp"
#include "lessons/frame/run.hpp"

/// @file
/// Attention over a sequence of which each rank has two runs of tokens.

namespace rankwise {

/// What a rank holds of one run of tokens of a micro-batch: B sequences, R = B T / (2 c) rows.
struct TokenRun {
  /// @param run     outlives it.
  /// @param number  of the run in the sequence.
  /// @param tokens  that it consists of.
  TokenRun(const Run& run, std::int64_t number, Range tokens);

  /// (R, C) gradient of the heads' outputs, between the two halves of an attention branch's backward pass.
  Tensor dhidden() const;
  /// (R, 3 C) gradient of q, k and v.
  Tensor dinner() const;

  std::int64_t number;    ///< of the run in the sequence
  Range tokens;           ///< of each sequence
  Workspace work;         ///< scratch
  Activations kept;       ///< from the forward to the backward pass
  MicroBatch batch;       ///< inputs, targets and positions
  ModelTensors gradient;  ///< to which the backward pass of the run adds
  Tensor doutput;         ///< (R, C) gradient of a branch's output
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

/// Floating-point operations of the forward pass of attention for some pairs of a query and a key, over @p channels: a
/// score and a weighted value of two operations per channel each.
constexpr std::int64_t attention_flops(std::int64_t pairs, std::int64_t channels)
{
  return 4 * pairs * channels;
}

}  // namespace rankwise
