#include "lessons/parallel/pipeline/stash.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "common/base/error.hpp"

namespace rankwise {

int most_in_flight(const std::vector<Action>& actions, int stage)
{
  // BEGIN EXERCISE 09.2
  // Only the list knows which action of a micro-batch is its last one in this stage.
  std::map<int, std::size_t> last;  // by micro-batch
  for (std::size_t i = 0; i < actions.size(); ++i)
    if (actions[i].stage == stage) last[actions[i].micro_batch] = i;
  // In flight from its forward pass on, until that action is over.
  int now = 0, most = 0;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    if (action.stage != stage) continue;
    if (action.kind == ActionKind::forward) most = std::max(most, ++now);
    if (i == last[action.micro_batch]) --now;
  }
  return most;
  // END EXERCISE
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
  // A backward pass follows, or W, which needs what B has needed.
  if (action.kind == ActionKind::forward ? training : action.kind == ActionKind::backward_input) return;
  free_.push_back(taken_.at(action.micro_batch));
  taken_.erase(action.micro_batch);
}

}  // namespace rankwise
