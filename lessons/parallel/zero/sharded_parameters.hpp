#pragma once

#include <cstdint>
#include <vector>

#include "common/memory/device.hpp"
#include "common/messages/communication_queue.hpp"
#include "gpt2/parameter_table.hpp"
#include "lessons/parallel/zero/fsdp_units.hpp"

/// @file
/// Parameters of which each rank stores 1/N; units are gathered for their use and freed after it.

namespace rankwise {

/// This rank's shard of every FSDP unit, (P/N), and the whole units that are gathered at the moment. Replicated
/// tensors are stored whole on every rank, and with Reshard::never all units are: a shard is then a part of its unit.
///
///     parameters.begin(uses);                             // of a micro-batch, in order
///     for (each use) { ... = parameters.use(unit); }      // in the same order
///     parameters.end();
///
/// A unit is prefetched on the queue while the rank computes with the units before it. All ranks make the same
/// calls.
class ShardedParameters {
 public:
  /// @param memory   where shards, replicated tensors and gathered units are allocated, counted as parameters.
  /// @param stream   of that device, which computes with them.
  /// @param queue    gathers them; outlives this.
  /// @param table    all units; outlives this.
  /// @param units    of make_fsdp_units().
  /// @param own      this rank's shard of each unit.
  /// @param type     of the parameters.
  /// @param options  when units are gathered and freed.
  /// @param kept     whether this rank's shards are stored here; if not, a derived class fetches them.
  /// @throws Error   when the memory does not suffice.
  ShardedParameters(const DeviceMemory& memory, Stream& stream, CommunicationQueue& queue,
                    const ParameterTable& table, std::vector<FsdpUnit> units, std::vector<Range> own, DType type,
                    const GatherOptions& options, bool kept = true);
  virtual ~ShardedParameters() = default;

  /// This rank's shard of each unit, which it updates. If shards are stored elsewhere, only the shards of the units
  /// that are kept whole; the others are empty.
  const std::vector<Tensor>& own() const { return own_tensors_; }
  /// Parameters kept whole on every rank, to re-synchronise after an update; empty if there are none.
  const Tensor& replicated() const { return replicated_.tensor(); }
  /// All parameters kept whole, one tensor per unit: the replicated ones, and with Reshard::never those of all units.
  std::vector<Tensor> whole() const;

  /// Plans the gathers of a micro-batch.
  /// @param uses  its uses, in order.
  void begin(const std::vector<Use>& uses);
  /// Advances to the next use. At the first use of its place in the plan: frees the units that are no longer needed,
  /// starts the gathers of the next ones, and waits for those that this use needs, and for no others. Further uses of
  /// the same place find everything there.
  /// @param unit  first unit of the next use. Any other one is an Error, after which nothing has changed.
  /// @return      its tensors as of() has them, in the order of the table; valid until the next use.
  std::vector<Tensor> use(std::int64_t unit);
  /// Tensors of another unit of the current use.
  std::vector<Tensor> of(std::int64_t unit) const;
  /// Ends the micro-batch after its last use, and frees all gathered units.
  void end();

 protected:
  /// Allocates a unit and starts to gather it.
  virtual void gather(std::size_t unit);

  DeviceMemory memory_;              ///< where gathered units are allocated
  CommunicationQueue& queue_;        ///< runs the all-gathers
  std::vector<FsdpUnit> units_;      ///< FSDP units
  std::vector<Range> own_;           ///< this rank's shard of each unit
  DType type_;                       ///< type of the parameters
  std::vector<Buffer> gathered_;     ///< whole units; empty if not gathered
  std::vector<Pending> on_its_way_;  ///< all-gather of each unit

 private:
  /// Where this rank's shards are stored: one view for each unit, in the order of units_, of own_[unit].count elements.
  /// If a unit is kept whole, in gathered_ or, those without units of the table, in replicated(), its shard is a part
  /// of it. The shards of all other units are stored in shards_, one after the other, or elsewhere: empty views.
  /// @param kept  whether shards_ holds them.
  std::vector<Tensor> views_of_shards(bool kept) const;
  bool keeps_units() const { return options_.reshard == Reshard::never; }
  void free(std::size_t unit) { gathered_[unit] = Buffer(); }

  Stream& stream_;
  const ParameterTable& table_;
  GatherOptions options_;

  Buffer shards_, replicated_;
  std::vector<Tensor> own_tensors_;  // by unit; of units that are kept whole, a slice of them

  std::vector<Use> uses_;            // this micro-batch's, in order
  std::vector<std::size_t> places_;  // index in plan_ of each use
  std::vector<GatherStep> plan_;     // what each place needs, frees and gathers
  std::size_t next_ = 0;             // next use
};

}  // namespace rankwise
