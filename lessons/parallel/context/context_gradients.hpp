#pragma once

#include <array>

#include "gpt2/arithmetic.hpp"
#include "gpt2/gradient_sum.hpp"
#include "lessons/frame/run.hpp"
#include "lessons/parallel/context/token_runs.hpp"

/// @file
/// The gradients of parameters, to which a rank's two runs of tokens contribute.

namespace rankwise {

/// The gradients of a micro-batch from both runs of tokens of a rank. In fast arithmetic both are added to one sum.
///
/// Exact arithmetic adds first over the tokens of a sequence, in the tree whose 2 c subtrees are the runs, then over
/// sequences. So the gradients of a sequence are summed over the c ranks before the next sequence begins. In zig-zag
/// order the ranks' earlier runs are the left half of that tree and their later runs, in reverse, the right half: each
/// half is summed by halving, and the halves are added. In contiguous order a rank's two runs are neighbours.
class ContextGradients {
 public:
  /// @param layout  gradients of the rank's parameters.
  /// @param group   the c ranks. All arguments outlive it.
  ContextGradients(const Run& run, const GradientLayout& layout, TokenOrder order, Group& group);

  /// Begins a micro-batch.
  /// @param d  gradients of the micro-batch.
  /// @return   to which the backward pass of each of the rank's two runs adds.
  std::array<GradientTensors, TokenRuns::of_a_rank> begin(const GradientTensors& d) const;
  /// Completes its gradients @p d.
  void end(const GradientTensors& d) const;

  /// Bytes of a second sum, in exact arithmetic.
  static std::int64_t bytes(const GradientLayout& layout, const Arithmetic& arithmetic);

 private:
  const Run& run_;
  TokenOrder order_;
  Group& group_;
  Buffer flat_, tied_;  // the later run's, in exact arithmetic
};

}  // namespace rankwise
