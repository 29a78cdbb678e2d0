#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/messages/group.hpp"
#include "gpt2/arithmetic.hpp"
#include "lessons/parallel/offload/offload.hpp"
#include "lessons/parallel/offload/tiers.hpp"
#include "lessons/parallel/zero/shard_sums.hpp"

/// @file
/// Sums of the gradients of one rank's shards, accumulated in the tier where they are stored.

namespace rankwise {

/// Gradient accumulation in a rank's shards over the micro-batches of a step. On the device as in lesson 05;
/// otherwise the gradients of each micro-batch are brought to the host and added there, to sums on the host or on
/// disk.
///
///     const TieredSums::Arrival there = sums.expect(shard, gradients);
///     ... reduce-scatter of the gradients ...
///     sums.bring(there, stream);                          // perhaps on another thread
///     sums.add(there, sequences);
///
/// Off the device the order of sums is the same as on it: a running sum; or in exact arithmetic a tree over the
/// sequences, kept as a binary counter. Its level l is a sum over 2^l micro-batches, which waits for the next sum
/// over as many, or for the last micro-batch.
///
///     micro-batch        0  1  2  3
///     levels with sums   0  1  0  2
///                              1          after micro-batch 3 one sum is left, on the highest level
class TieredSums {
 public:
  /// All references outlive this.
  /// @param plan   tier of each state, and order of the sums.
  /// @param tiers  moves the blocks.
  /// @throws Error when the memory does not suffice.
  TieredSums(const OffloadPlan& plan, Tiers& tiers);

  /// Gradients of one block in one micro-batch, on the host.
  struct Gradients {
    std::size_t block = 0;  ///< number of the block
    Tensor sum{};           ///< (its elements)
    Tensor tied{};          ///< (its elements) second gradient of a tied tensor, if it is a separate sum
  };
  /// Gradients of a shard on their way from the device to where they are added.
  struct Arrival {
    std::size_t shard = 0;      ///< number of the shard
    std::vector<Tensor> from;   ///< on the device, one tensor or two (BucketGradients::of())
    std::vector<Gradients> to;  ///< on the host; none if they are added on the device
  };

  /// Reserves the landing buffer on the host for the gradients of a shard; one shard at a time.
  Arrival expect(std::size_t shard, const std::vector<Tensor>& gradients);
  /// Leaves on each rank's device its shard of a bucket, ShardSums::reduce_scatter().
  void reduce_scatter(std::size_t shard, const std::vector<Tensor>& gradients, Group& group);
  /// Copies the gradients to the host; they have arrived when this returns. Those of every rank are copied by add().
  /// @param stream  of the device, on which they are computed.
  void bring(const Arrival& there, Stream& stream);
  /// Adds the gradients to the sums. The first micro-batch of a step, that of sequence 0, starts new sums. With
  /// early updates (OffloadPlan::updates_early()) the last arrival then holds the complete sum, which is stored
  /// nowhere else.
  /// @param sequences  of all ranks in this micro-batch.
  void add(const Arrival& there, Range sequences);
  /// Complete sums; nullptr with early updates. To be called once a step, after the last micro-batch.
  std::shared_ptr<BlockStore> totals();
  /// First element that is not finite among the sums that this rank has completed in this step; nothing if all are
  /// finite. Numbered as in TieredAdamW::first_not_finite(): parameters first, then gradients.
  std::optional<std::int64_t> first_not_finite() const { return first_not_finite_; }
  /// Type of a sum of squares.
  using Squares = decltype(std::declval<const Kernels&>()->squared_norm(Tensor()));
  /// Sum of the squares of those of this rank's totals() that it counts in the norm (OffloadPlan::counted). To be
  /// called once a step, after totals().
  Squares squares();
  /// The same, summed over all ranks of a group; the same on all of them.
  double squared_norm(Group& group);

 private:
  /// One level of the counter: sums of all of a rank's elements, and second sums of those in the tied tensor.
  struct Level {
    std::shared_ptr<BlockStore> sums, tied;
  };
  /// Memory on the host where the gradients of a shard arrive from the device.
  struct Landing {
    std::vector<BlockBuffer> sums, tied;
    std::vector<Pending> stores;  // from there to the disk
  };
  bool adds_rank_by_rank() const { return received_->ranks() > 1; }
  void copy_to_host(const Arrival& there, Stream& stream);
  void wait_for_stores(Landing& landing);
  void add_term(const std::vector<Gradients>& gradients, std::int64_t term);
  void add_waiting(const std::vector<Gradients>& gradients, std::int64_t term);
  void keep(const Gradients& gradients, std::int64_t term);
  void complete(const Gradients& gradients);

  OffloadPlan plan_;
  Tiers& tiers_;
  ComputePlace device_, host_;
  std::optional<ShardSums> on_device_;
  std::optional<ReceivedShards> received_;        // off the device
  std::vector<Tensor> totals_;                    // on the device
  std::vector<Level> levels_;                     // off the device
  std::vector<Landing> landings_;                 // off the device; two with a disk
  std::array<BlockBuffer, 2> buffers_;            // for sums from the disk
  std::size_t now_ = 0;                           // current landing
  Squares squares_;                               // of complete sums off the device
  std::optional<std::int64_t> first_not_finite_;  // of those
};

}  // namespace rankwise
