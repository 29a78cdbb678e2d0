#pragma once

#include <vector>

#include "lessons/parallel/pipeline/pipeline_schedule.hpp"

/// @file
/// For tests of what carries out schedules: backward passes in two halves.

namespace rankwise::testing {

/// The schedule with each backward pass as its first half, B, and right after it the second, W.
inline PipelineSchedule in_halves(const PipelineSchedule& whole)
{
  PipelineSchedule schedule = whole;
  for (std::vector<Action>& actions : schedule.actions) {
    std::vector<Action> halves;
    for (Action action : actions) {
      const bool backward = action.kind == ActionKind::backward;
      if (backward) action.kind = ActionKind::backward_input;
      halves.push_back(action);
      if (backward) halves.push_back({ActionKind::backward_weights, action.micro_batch, action.stage});
    }
    actions = halves;
  }
  return schedule;
}

}  // namespace rankwise::testing
