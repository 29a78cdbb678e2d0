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
/// one.
class ShardSums {
 public:
  /// @param arithmetic  order of the sums.
  /// @param kernels     add on @p stream; both outlive this, as does @p memory.
  /// @param memory      where the sums are stored.
  /// @param all         layout of all gradients of the model: their type, and the token embedding's range if the
  ///                    head's gradient of it is a separate sum.
  /// @param own         this rank's shards, ranges of the flat vector.
  /// @param ranks       number of ranks that are added one by one, separate_ranks(); 1: none.
  ShardSums(const Arithmetic& arithmetic, const Kernels& kernels, Stream& stream, const DeviceMemory& memory,
            const GradientLayout& all, const std::vector<Range>& own, std::int64_t ranks = 1);

  /// True if gradients of each rank are added one by one, and so received by receive().
  bool adds_rank_by_rank() const { return received_.ranks() > 1; }
  /// Receives this rank's shard of a bucket from every rank, for the next add(); in place of sums over the ranks. All
  /// ranks make this call, perhaps on another thread.
  /// @param shard      number of the shard.
  /// @param gradients  of the whole bucket, and the head's gradient of the token embedding if it is in the bucket.
  void receive(std::size_t shard, const std::vector<Tensor>& gradients, Group& group);

  /// Adds the gradients of one micro-batch to the sum of a shard. The first micro-batch of a step, that of sequence
  /// 0, starts a new sum.
  /// @param shard      number of the shard.
  /// @param sequences  of all ranks in this micro-batch.
  /// @param gradients  of the shard's elements; and, if it is a separate sum, the head's gradient of the token
  ///                   embedding's elements among them. Not read if receive() has received those of all ranks.
  void add(std::size_t shard, Range sequences, const std::vector<Tensor>& gradients);
  /// Sums over the step, one tensor per shard. To be called once a step.
  std::vector<Tensor> totals();

  /// Bytes of a rank's sums, by category.
  static CategoryBytes bytes(const Arithmetic& arithmetic, const StepPlan& plan, RankOf rank);

 private:
  std::vector<std::unique_ptr<GradientSum>> sums_;
  ReceivedShards received_;
};

}  // namespace rankwise
