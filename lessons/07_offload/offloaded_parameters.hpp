#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "lessons/06_zero3/sharded_parameters.hpp"
#include "lessons/07_offload/offload.hpp"
#include "lessons/07_offload/tiers.hpp"

/// @file
/// Sharded parameters whose shards may lie off the device.

namespace rankwise {

/// The parameters of lesson 06, of which a rank's shards lie on the device, on the host or on disk. When a unit is gathered
/// the blocks of this rank's shard come straight to their place in it, and then the unit goes round.
///
///     disk, host     [ own shard ]
///                           |  blocks
///     device         [      v      |     of others      ]   the gathered unit
class OffloadedParameters final : public ShardedParameters {
 public:
  /// @param plan     what lies where.
  /// @param tiers    brings the blocks; outlives this.
  /// @param stream, queue, table, options  as for ShardedParameters.
  /// @throws Error   when there is no room.
  OffloadedParameters(const OffloadPlan& plan, Tiers& tiers, Stream& stream, CommunicationQueue& queue,
                      const ParameterTable& table, const GatherOptions& options);

  /// This rank's shards, where they lie.
  BlockStore& store() { return *store_; }
  /// Brings this rank's part of what is replicated to where it is gathered, if it is not there.
  void bring_replicated();

 private:
  void gather(std::size_t unit) override;
  std::function<void()> bring(std::size_t unit, const Tensor& to);

  Tiers& tiers_;
  bool here_;  // whether shards lie on the device
  std::unique_ptr<BlockStore> store_;
};

}  // namespace rankwise
