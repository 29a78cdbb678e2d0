#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lessons/parallel/pipeline/pipeline_schedule.hpp"

/// @file
/// Checks of a schedule before anything runs: whether it can be carried out, how long it takes, what it keeps.

namespace rankwise {

/// Durations of one stage's actions, in units of time.
struct ActionCosts {
  std::int64_t forward = 1;           ///< F
  std::int64_t backward_input = 1;    ///< B
  std::int64_t backward_weights = 1;  ///< W
  std::int64_t again = 0;             ///< recomputation: once before B, before W, or before a whole backward pass

  /// Duration of one action.
  std::int64_t of(ActionKind kind) const;
};

/// An action with its times.
struct TimedAction {
  Action action;           ///< what runs
  std::int64_t begin = 0;  ///< in units of time since the step began
  std::int64_t end = 0;    ///< begin + duration
};

/// A schedule that can be carried out, with the times of every action if messages take no time.
struct TimedSchedule {
  std::vector<std::vector<TimedAction>> actions;  ///< by rank, in order
  std::vector<int> in_flight;  ///< per rank: most activations kept at once, each of one micro-batch in one stage
  std::int64_t length = 0;     ///< duration of the step, from the first start to the last end

  /// Time in which a rank computes.
  std::int64_t busy(int rank) const;
  /// Fraction of all ranks' time in which they are idle, the pipeline bubble.
  double idle_share() const;
};

/// True if an action receives a message: rows, except in the first stage; or a gradient, except in the last one.
bool receives(const PipelineSchedule& schedule, const Action& action);
/// True if an action sends its result: rows, except in the last stage; or a gradient, except in the first one.
bool sends(const PipelineSchedule& schedule, const Action& action);

/// Simulates a schedule.
///
/// Checked: each rank has the actions of its own stages and no others; each micro-batch passes through each stage
/// forward once and backward once, whole or in its two halves; backward after forward, and W after B; messages
/// arrive at a rank in the order in which it needs them, on each of the four channels to and from its neighbours;
/// there is no deadlock; a rank never has more than max_in_flight micro-batches in flight, and at some time as many
/// (activations are kept from the forward pass to the end of the backward pass, or of its W). If max_in_flight is 0
/// on all ranks, the schedule has forward passes only.
/// @param costs   of each stage.
/// @throws Error  with the rank, the number of the action in its list (from 0), the action, and what is wrong with
///         it.
TimedSchedule check_schedule(const PipelineSchedule& schedule, const std::vector<ActionCosts>& costs);
/// The same with equal costs for all stages.
TimedSchedule check_schedule(const PipelineSchedule& schedule, const ActionCosts& costs = {});

/// A drawing of the times as text, a line for each rank: a forward pass as the last digit of its micro-batch, a
/// backward pass (or B) as a small letter, a for micro-batch 0, and W as a capital letter; idle time as dots.
///
///     rank  0 |000111......aaaaaa...bbbbbb|
///
/// @param columns  width, > 0; each column shows the action at its middle.
std::string draw(const TimedSchedule& timed, int columns);

}  // namespace rankwise
