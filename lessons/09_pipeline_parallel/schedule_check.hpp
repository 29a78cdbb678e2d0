#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lessons/09_pipeline_parallel/pipeline_schedule.hpp"

/// @file
/// What can be said of a schedule before anything runs: whether it can be carried out, how long it takes, what it keeps.

namespace rankwise {

/// What the actions of one stage take, in units of time.
struct ActionCosts {
  std::int64_t forward = 1;           ///< F
  std::int64_t backward_input = 1;    ///< B
  std::int64_t backward_weights = 1;  ///< W
  std::int64_t again = 0;  ///< in front of B, of W, and of both together: the forward pass that is run again

  /// Of one action.
  std::int64_t of(ActionKind kind) const;
};

/// An action and when it is done.
struct TimedAction {
  Action action;           ///< which
  std::int64_t begin = 0;  ///< in units of time from the begin of the step
  std::int64_t end = 0;    ///< begin + what it takes
};

/// A schedule that can be carried out, with the times at which every action runs where messages take none.
struct TimedSchedule {
  std::vector<std::vector<TimedAction>> actions;  ///< by rank, in order
  std::vector<int>
      in_flight;            ///< by rank: the most activations kept at a time, of one micro-batch in one stage each
  std::int64_t length = 0;  ///< of the step, from the first begin to the last end

  /// What a rank works.
  std::int64_t busy(int rank) const;
  /// The share of all ranks' time in which they do not work.
  double idle_share() const;
};

/// Carries out a schedule on paper.
///
/// Checked: each rank has its own stages' actions and no others; each micro-batch goes forwards through each stage once and
/// backwards once, whole or in its two halves; backwards behind forwards, and W behind B; rows arrive at a rank in the order in
/// which it wants them, on each of the four ways from and to its neighbours; nobody waits for ever; a rank keeps at no time more
/// than its room, and at some time that much (activations are kept from the forward pass to the end of the backward pass, or of
/// its W). Where no rank has room, the forward passes are all that there is.
/// @param costs   of each stage.
/// @throws Error  with the rank, the number of the action in its list (from 0), the action, and what is wrong with it.
TimedSchedule check_schedule(const PipelineSchedule& schedule, const std::vector<ActionCosts>& costs);
/// The same with equal stages.
TimedSchedule check_schedule(const PipelineSchedule& schedule, const ActionCosts& costs = {});

/// The times drawn as text, a line for each rank: a forward pass as the last digit of its micro-batch, a backward pass (or B) as
/// a small letter, a for micro-batch 0, and W as a capital; idle time as dots.
///
///     rank  0 |000111......aaaaaa...bbbbbb|
///
/// @param columns  how wide, > 0; each shows what is done in its middle.
std::string draw(const TimedSchedule& timed, int columns);

}  // namespace rankwise
