#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/messages/group.hpp"
#include "gpt2/arithmetic.hpp"
#include "lessons/parallel/zero/received_shards.hpp"
#include "lessons/parallel/zero/step_plan.hpp"

/// @file
/// Sums of the gradients of one rank's shards.

namespace rankwise {

/// Sequences of all ranks in the micro-batch in which this rank takes @p own: N runs of B neighbours, in rank
/// order.
Range of_all_ranks(Range own, const Group& group);

/// Sequences of the global batch that this rank takes, one range per micro-batch. Gradients are summed over the
/// ranks first and over micro-batches second, and what is added first must be adjacent in the global batch. So
/// micro-batch m takes sequences m N B to (m+1) N B - 1, and rank r the r-th B of them. (Where each rank first
/// accumulates its own micro-batches, as in lesson 04, those are adjacent instead.)
std::vector<Range> micro_batches_of_step(const BatchShape& batch, const Group& group);

/// The batch of a step with as many sequences as all micro-batches of all ranks: if some have fewer sequences than others,
/// padding follows the global batch. Its gradients are zero, which changes no bit of a sum.
BatchShape with_padding(const BatchShape& batch, const Group& group);

/// Gradient accumulation in a rank's shards over the micro-batches of a step. What is added has been reduced over
/// the ranks already: one micro-batch of all ranks together is a run of N B neighbouring sequences.
///
/// In exact arithmetic they are a subtree if N is a power of two. Otherwise no sum over the ranks has a place in the tree
/// (adds_rank_by_rank()): each rank receives its shards of every rank's gradients, as many bytes, and adds them one by
/// one. A lesson makes the same calls in any case.
class ShardSums {
 public:
  /// @param kernels  add on @p stream; both outlive this, as does @p memory.
  /// @param memory   where the sums are stored.
  /// @param plan     buckets, order of the sums, and layout of all gradients of the model.
  /// @param own      this rank's shards, ranges of the flat vector.
  /// @param ranks    N, over which gradients are summed.
  ShardSums(const Kernels& kernels, Stream& stream, const DeviceMemory& memory, const StepPlan& plan,
            const std::vector<Range>& own, std::int64_t ranks);

  /// Leaves on each rank its shard of a bucket's gradients for the next add(): their sum over the ranks, or those of every
  /// rank. All ranks make this call, perhaps on another thread.
  /// @param shard      number of the shard.
  /// @param gradients  of the whole bucket, BucketGradients::of().
  void reduce_scatter(std::size_t shard, const std::vector<Tensor>& gradients, Group& group);

  /// Adds the gradients of one micro-batch to the sum of a shard. The first micro-batch of a step, that of sequence
  /// 0, starts a new sum.
  /// @param shard      number of the shard.
  /// @param sequences  of all ranks in this micro-batch.
  /// @param gradients  of the shard's elements, BucketGradients::of(). Not read if those of every rank have been received.
  void add(std::size_t shard, Range sequences, const std::vector<Tensor>& gradients);
  /// Sums over the step, one tensor per shard. To be called once a step.
  std::vector<Tensor> totals();

  /// Bytes of a rank's sums, by category.
  static CategoryBytes bytes(const StepPlan& plan, RankOf rank);

 private:
  std::vector<std::unique_ptr<GradientSum>> sums_;
  ReceivedShards received_;
};

}  // namespace rankwise
