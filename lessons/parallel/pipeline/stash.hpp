#pragma once

#include <map>
#include <memory>
#include <vector>

#include "gpt2/activations.hpp"
#include "gpt2/model.hpp"
#include "lessons/parallel/pipeline/pipeline_schedule.hpp"

/// @file
/// Activations of micro-batches in flight, kept from the forward pass to the end of the backward pass.

namespace rankwise {

/// The most micro-batches in flight at once in one stage of a rank's list: the slots that its stash needs.
///
/// A micro-batch is in flight in a stage as long as the stage keeps its activations: from its forward pass to its last
/// action in that stage, both included. That is its backward pass; or W, which needs them as B does and may come much
/// later; or, in a list without backward passes (validation), the forward pass itself.
///
/// @param actions  of one rank, in order. Those of the rank's other stages do not count.
/// @param stage    number of the stage; 0 is returned if none of the actions is in it.
int most_in_flight(const std::vector<Action>& actions, int stage);

/// Slot of the stash: one micro-batch in one stage.
struct InFlight {
  Activations kept;  ///< activations for its backward pass
  MicroBatch batch;  ///< its sequences and tokens
};

/// The slots of one stage, one for each micro-batch that may be in flight at once; each serves one micro-batch
/// after another.
class Stash {
 public:
  /// @param memory     of the device.
  /// @param config     the model.
  /// @param shape      of a micro-batch in this stage.
  /// @param workspace  of the rank. All arguments outlive the stash.
  /// @param places     number of slots: the most micro-batches in flight.
  Stash(const DeviceMemory& memory, const ModelConfig& config, const ActivationShape& shape,
        const Workspace& workspace, int places);

  /// Before an action: the micro-batch's slot. A forward pass takes a free one.
  /// @throws Error  if no slot is free for a forward pass, or none is taken for a backward pass.
  InFlight& before(const Action& action);
  /// After an action: frees the slot if this was the last action to need it.
  /// @param training  whether the schedule has backward passes.
  void after(const Action& action, bool training);

  /// The most slots taken at once so far.
  int most_taken() const { return most_taken_; }

 private:
  std::vector<std::unique_ptr<InFlight>> places_;
  std::vector<InFlight*> free_;
  std::map<int, InFlight*> taken_;  // by micro-batch
  int most_taken_ = 0;
};

}  // namespace rankwise
