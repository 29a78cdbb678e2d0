#pragma once

#include <cstdint>
#include <vector>

#include "common/memory/device.hpp"
#include "common/messages/communication_queue.hpp"
#include "gpt2/parameter_table.hpp"
#include "lessons/06_zero3/fsdp_units.hpp"

/// @file
/// Parameters that each rank has 1/N of: what a pass computes with is gathered for it, and freed.

namespace rankwise {

/// The parameters of all units, of which this rank keeps its own shards; and those of all ranks of the units that a pass
/// is at. What is replicated is whole on every rank.
///
///     parameters.begin(uses);                             // of the pass, in order
///     for (each use) { ... = parameters.use(unit); }      // in the same order
///     parameters.end();
///
/// A unit is gathered on the queue while the pass computes with the units in front of it. All ranks make the same passes.
class ShardedParameters {
 public:
  /// @param memory   where they lie, counted as parameters: (own elements), (what is replicated), and what is gathered.
  /// @param stream   of that device, which computes with them.
  /// @param queue    gathers them; outlives this.
  /// @param table    of all units; outlives this.
  /// @param units    of make_fsdp_units().
  /// @param own      this rank's shard of each unit.
  /// @param type     of the parameters.
  /// @param options  when they are gathered and freed.
  /// @param kept     whether this rank's shards lie here; else a class that is derived from this one brings them.
  /// @throws Error   when there is no room.
  ShardedParameters(const DeviceMemory& memory, Stream& stream, CommunicationQueue& queue,
                    const ParameterTable& table, std::vector<FsdpUnit> units, std::vector<Range> own, DType type,
                    const GatherOptions& options, bool kept = true);
  virtual ~ShardedParameters() = default;

  /// What this rank keeps of each unit: what it updates. Where that lies elsewhere there is only its part of what lies
  /// apart.
  const std::vector<Tensor>& own() const { return own_tensors_; }
  /// What is replicated, whole: for whoever makes it the same on all ranks after an update. Empty where nothing does.
  const Tensor& replicated() const { return replicated_.tensor(); }

  /// Begins a pass.
  /// @param uses  what it computes with, place by place.
  void begin(const std::vector<Use>& uses);
  /// Goes on to the next use of the pass: frees what is not needed any more, begins to gather what is needed next, and
  /// waits for what is needed now.
  /// @param unit  the first of that use, or Error.
  /// @return      its tensors, in the order of the table; valid until the next use.
  std::vector<Tensor> use(std::int64_t unit);
  /// The tensors of another unit of the use that the pass is at.
  std::vector<Tensor> of(std::int64_t unit) const;
  /// Ends a pass that has come to its last use, and frees what is left.
  void end();

 protected:
  /// Makes room for a unit and begins to gather it.
  virtual void gather(std::size_t unit);

  DeviceMemory memory_;              ///< where gathered units lie
  CommunicationQueue& queue_;        ///< gathers them
  std::vector<FsdpUnit> units_;      ///< what is gathered together
  std::vector<Range> own_;           ///< this rank's shard, by unit
  DType type_;                       ///< of the parameters
  std::vector<Buffer> gathered_;     ///< whole units, by unit
  std::vector<Pending> on_its_way_;  ///< by unit

 private:
  void free(std::size_t unit) { gathered_[unit] = Buffer(); }

  Stream& stream_;
  const ParameterTable& table_;
  GatherOptions options_;

  Buffer shards_, replicated_;
  std::vector<Tensor> own_tensors_;  // by unit; of the last one within replicated_, if tensors are replicated

  std::vector<Use> uses_;            // of the pass
  std::vector<std::size_t> places_;  // of each use in the plan
  std::vector<GatherStep> plan_;
  std::size_t next_ = 0;  // use
};

}  // namespace rankwise
