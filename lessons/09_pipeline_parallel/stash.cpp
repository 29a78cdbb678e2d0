#include "lessons/09_pipeline_parallel/stash.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "common/base/error.hpp"

namespace rankwise {

bool frees(const Action& action, bool training)
{
  // BEGIN EXERCISE 09.2 points=10 "Lifetime of activations: whether this is the last action of its micro-batch in "
  //     "its stage that needs them. A backward pass in two halves needs them in both, and W comes after B. "
  //     "Without backward passes (validation) they are not needed after the forward pass."
  if (action.kind == ActionKind::forward) return !training;
  return action.kind != ActionKind::backward_input;
  // END EXERCISE
}

int most_in_flight(const std::vector<Action>& actions, int stage)
{
  int now = 0, most = 0;
  for (const Action& action : actions) {
    if (action.stage != stage) continue;
    if (action.kind == ActionKind::forward) most = std::max(most, ++now);
    if (frees(action, true)) --now;
  }
  return most;
}

Stash::Stash(const DeviceMemory& memory, const ModelConfig& config, const ActivationShape& shape,
             const Workspace& workspace, int places)
{
  for (int place = 0; place < places; ++place) {
    places_.push_back(std::make_unique<InFlight>(InFlight{Activations(memory, config, shape, workspace), {}}));
    free_.push_back(places_.back().get());
  }
}

InFlight& Stash::before(const Action& action)
{
  if (action.kind == ActionKind::forward) {
    check(!free_.empty(), fmt::format("{}: the stage has no free slot for its activations", describe(action)));
    taken_[action.micro_batch] = free_.back();
    free_.pop_back();
    most_taken_ = std::max(most_taken_, static_cast<int>(taken_.size()));
  }
  const auto place = taken_.find(action.micro_batch);
  check(place != taken_.end(), fmt::format("{}: no activations are kept of its forward pass", describe(action)));
  return *place->second;
}

void Stash::after(const Action& action, bool training)
{
  if (!frees(action, training)) return;
  free_.push_back(taken_.at(action.micro_batch));
  taken_.erase(action.micro_batch);
}

}  // namespace rankwise
