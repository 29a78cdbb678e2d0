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
#include "lessons/05_zero2/shard_sums.hpp"
#include "lessons/07_offload/offload.hpp"
#include "lessons/07_offload/tiers.hpp"

/// @file
/// Sums of the gradients of what one rank owns, added up where they lie.

namespace rankwise {

/// The sums of a rank's shards over the passes of a step: on the device those of lesson 05; else on the host, to which the
/// gradients of each pass come, with the sums there or on disk.
///
///     const TieredSums::Arrival there = sums.expect(shard, gradients);
///     ... gradients become those of all ranks ...
///     sums.bring(there, stream);                          // perhaps on another thread
///     sums.add(there, sequences);
///
/// Off the device the sums over passes are the same as on it: one after the other; or, where sums are a tree over the
/// sequences, a binary counter. Its digit l is a sum over 2^l passes, and waits for the next such.
///
///     pass   0  1  2  3
///     sums   0  1  0  2
///                  1          after pass 3 one sum is left, on the highest level
class TieredSums {
 public:
  /// @param plan        what lies where.
  /// @param arithmetic  how sums are made.
  /// @param tiers       brings the blocks.
  /// @param device      for sums that stay there.
  /// @param host        for all others.
  /// @throws Error      when there is no room. All that is given outlives this.
  TieredSums(const OffloadPlan& plan, const Arithmetic& arithmetic, Tiers& tiers, const ComputePlace& device,
             const ComputePlace& host);

  /// What a pass gives to a block.
  struct Gradients {
    std::size_t block = 0;  ///< which
    Tensor sum{};           ///< (its elements)
    Tensor tied{};          ///< the same, only in a tied tensor whose two gradients are kept apart
  };
  /// The gradients of a shard, from the device to where they are added.
  struct Arrival {
    std::size_t shard = 0;      ///< which
    std::vector<Tensor> from;   ///< on the device, one tensor or two (BucketGradients::of())
    std::vector<Gradients> to;  ///< on the host; none where they are added on the device
  };

  /// Makes room for them. There is room for one shard at a time.
  Arrival expect(std::size_t shard, const std::vector<Tensor>& gradients);
  /// Brings them; they have arrived when this returns.
  /// @param stream  of the device, on which they are made.
  void bring(const Arrival& there, Stream& stream);
  /// Adds them to the sums. With the first pass of a step, that of sequence 0, a new sum begins. Where updates are early
  /// (OffloadPlan::updates_early()) the last pass's arrival is then the whole sum, which is kept nowhere else.
  /// @param sequences  of all ranks, in this pass.
  void add(const Arrival& there, Range sequences);
  /// The whole sums; nullptr where updates are early. To be called once a step, after the last pass.
  BlockStore* totals();
  /// Of the whole sums that a step with an early update has so far, the first element of this rank's that is not finite,
  /// counted through all parameters and then through all their gradients; nothing where all are.
  std::optional<std::int64_t> first_not_finite() const { return first_not_finite_; }
  /// The sum of the squares of all ranks' totals(), the same on all of them. To be called once a step, after totals().
  double squared_norm(Group& group);

 private:
  /// What kernels add squares up in.
  using Squares = decltype(std::declval<const Kernels&>().squared_norm(Tensor()));
  /// Sums that wait, of all of a rank's elements, and of those in the tied tensor.
  struct Level {
    std::unique_ptr<BlockStore> sums, tied;
  };
  void add_waiting(const std::vector<Gradients>& gradients, std::int64_t pass);
  void keep(const Gradients& gradients, std::int64_t pass);
  void complete(const Gradients& gradients);
  void keep(BlockStore& level, std::size_t block, const Tensor& sum);

  OffloadPlan plan_;
  Tiers& tiers_;
  ComputePlace device_, host_;
  std::optional<ShardSums> on_device_;
  std::unique_ptr<BlockStore> shown_;                 // what is on the device, as blocks
  std::vector<Tensor> totals_;                        // there
  std::vector<Level> levels_;                         // off the device
  std::vector<BlockSlot> landing_, tied_landing_;     // for gradients from the device; with a disk behind it twice
  std::array<BlockSlot, 2> buffers_;                  // for blocks from the disk
  std::array<std::vector<BlockTransfer>, 2> stores_;  // on their way from each landing
  std::size_t now_ = 0;                               // the landing that is used
  Squares squares_;                                   // of what is complete off the device
  std::optional<std::int64_t> first_not_finite_;      // of that
};

}  // namespace rankwise
