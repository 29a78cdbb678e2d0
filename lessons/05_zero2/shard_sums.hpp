#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/messages/group.hpp"
#include "gpt2/arithmetic.hpp"
#include "lessons/04_zero1/step_plan.hpp"

/// @file
/// Sums of the gradients of what one rank owns.

namespace rankwise {

/// The sequences that all ranks take together in a pass in which this rank takes @p own: the ranks' are neighbours, by
/// rank.
Range of_all_ranks(Range own, const Group& group);

/// The sequences of the global batch that this rank takes, pass by pass. What is added first has to lie side by side, and the
/// ranks' gradients are added before those of the next pass: so the ranks of a pass are neighbours. Pass m takes m N B up to
/// (m+1) N B, and rank r of it the r-th B. (Where each rank adds up its own passes first, its passes are neighbours.)
std::vector<Range> micro_batches_of_step(const BatchShape& batch, const Group& group);

/// The sums of the gradients of a rank's shards over the passes of a step. What is added has been summed over the ranks
/// before: a pass of all ranks together is a run of neighbouring sequences.
class ShardSums {
 public:
  /// @param arithmetic  how sums are made.
  /// @param kernels     add on @p stream; with it and @p memory outlive this.
  /// @param memory      where the sums lie.
  /// @param all         of all gradients of the model: their type, and where the token embedding's lies if the head's part
  ///                    of it is kept apart.
  /// @param own         the shards, of the same flat vector.
  ShardSums(const Arithmetic& arithmetic, const Kernels& kernels, Stream& stream, const DeviceMemory& memory,
            const GradientLayout& all, const std::vector<Range>& own);

  /// Adds what a pass gave to a shard. With the first pass of a step, that of sequence 0, a new sum begins.
  /// @param shard    which one.
  /// @param sequences  of all ranks, in this pass.
  /// @param gradients  of the shard's elements; and, if kept apart, the head's part of the token embedding's among them.
  void add(std::size_t shard, Range sequences, const std::vector<Tensor>& gradients);
  /// The whole sums, shard by shard. To be called once a step.
  std::vector<Tensor> totals();

  /// The bytes that those of a rank take by category.
  static CategoryBytes bytes(const Arithmetic& arithmetic, const StepPlan& plan, RankOf rank);

 private:
  std::vector<std::unique_ptr<GradientSum>> sums_;
};

}  // namespace rankwise
