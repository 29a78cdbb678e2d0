#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "lessons/parallel/offload/offload.hpp"
#include "lessons/parallel/offload/tiers.hpp"
#include "lessons/parallel/zero/sharded_parameters.hpp"

/// @file
/// Sharded parameters whose shards may be stored off the device.

namespace rankwise {

/// The parameters of lesson 06, with this rank's shards stored on the device, on the host or on disk. To gather a
/// unit, the blocks of this rank's shard are fetched straight to their place in it, and then the unit is
/// all-gathered.
///
///     disk, host     [ own shard ]
///                           |  blocks
///     device         [      v      |     of others      ]   the gathered unit
class OffloadedParameters final : public ShardedParameters {
 public:
  /// @param plan     tier of each state.
  /// @param tiers    fetches the blocks; outlives this.
  /// @param stream, queue, table, options  as for ShardedParameters.
  /// @throws Error   when the memory does not suffice.
  OffloadedParameters(const OffloadPlan& plan, Tiers& tiers, Stream& stream, CommunicationQueue& queue,
                      const ParameterTable& table, const GatherOptions& options);

  /// This rank's shards in the tier where they are stored.
  const std::shared_ptr<BlockStore>& store() const { return store_; }
  /// Fetches this rank's shards of the parameters that are kept whole to the device, unless they are stored there.
  void bring_whole();

 private:
  void gather(std::size_t unit) override;
  std::function<void()> bring(std::size_t unit, const Tensor& to);

  Tiers& tiers_;
  bool here_;  // whether shards are stored on the device
  std::shared_ptr<BlockStore> store_;
};

}  // namespace rankwise
