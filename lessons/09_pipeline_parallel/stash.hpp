#pragma once

#include <map>
#include <memory>
#include <vector>

#include "gpt2/activations.hpp"
#include "gpt2/model.hpp"
#include "lessons/09_pipeline_parallel/pipeline_schedule.hpp"

/// @file
/// What micro-batches in flight keep from their forward pass to the end of their backward pass.

namespace rankwise {

/// Whether an action is the last one that needs what its micro-batch keeps in its stage.
/// @param training  whether the schedule goes backwards too.
bool frees(const Action& action, bool training);

/// The most micro-batches that a rank's list keeps activations of at a time in one stage.
int most_in_flight(const std::vector<Action>& actions, int stage);

/// One micro-batch in one stage.
struct InFlight {
  Activations kept;       ///< what its backward pass needs
  MicroBatch batch;       ///< which sequences these are
  std::size_t place = 0;  ///< its number among the places of the stage
};

/// The activations of one stage: as many as are in flight at a time, lent to one micro-batch after the other.
class Stash {
 public:
  /// @param memory     where from.
  /// @param config     the model.
  /// @param shape      of a micro-batch in this stage.
  /// @param workspace  of the rank. All that is given outlives the stash.
  /// @param places     the most micro-batches in flight.
  Stash(const DeviceMemory& memory, const ModelConfig& config, const ActivationShape& shape,
        const Workspace& workspace, int places);

  /// Before an action: the micro-batch's place. A forward pass gets a free one; Error where there is none, or nothing is kept.
  InFlight& before(const Action& action);
  /// After an action: a place that nobody needs any more is free again. @param training  as for frees().
  void after(const Action& action, bool training);

  /// The most places that were taken at a time.
  int most_taken() const { return most_taken_; }

 private:
  std::vector<std::unique_ptr<InFlight>> places_;
  std::vector<InFlight*> free_;
  std::map<int, InFlight*> taken_;  // by micro-batch
  int most_taken_ = 0;
};

}  // namespace rankwise
