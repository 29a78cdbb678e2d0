#include "lessons/parallel/pipeline/pipeline_schedule.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "common/base/error.hpp"

namespace rankwise {

// ---- Names ----------------------------------------------------------------------------------------------------------

std::string describe(const Action& action)
{
  return fmt::format("{} of micro-batch {} in stage {}", name_of(action.kind), action.micro_batch, action.stage);
}

std::string name_of(ActionKind kind)
{
  switch (kind) {
    case ActionKind::forward:
      return "forward";
    case ActionKind::backward:
      return "backward";
    case ActionKind::backward_input:
      return "backward-input";
    case ActionKind::backward_weights:
      return "backward-weights";
  }
  return "";
}

// ---- Schedules ------------------------------------------------------------------------------------------------------

namespace {

/// The share of a step in which a rank is idle.
double share_of(int idle, int work)
{
  return static_cast<double>(idle) / (idle + work);
}

/// A schedule with empty lists. Its first rows reach the last rank after p - 1 passes, and the last gradient needs as
/// many to come back; a rank has v m passes in each direction.
PipelineSchedule empty_schedule(const std::string& name, int ranks, int virtual_stages, int micro_batches)
{
  check(ranks >= 1 && virtual_stages >= 1 && micro_batches >= 1,
        fmt::format("{}: {} ranks with {} stages each and {} micro-batches", name, ranks, virtual_stages,
                    micro_batches));
  const auto p = static_cast<std::size_t>(ranks);
  return {name,
          ranks,
          virtual_stages,
          micro_batches,
          std::vector<std::vector<Action>>(p),
          std::vector<int>(p),
          share_of(ranks - 1, virtual_stages * micro_batches)};
}

/// A rank's passes of one kind, in groups of p micro-batches: each group passes through the first of the rank's
/// stages, then through the second, and so on; backward it begins with the last one.
std::vector<Action> in_groups(const PipelineSchedule& schedule, int rank, ActionKind kind)
{
  const int p = schedule.ranks, v = schedule.virtual_stages, m = schedule.micro_batches;
  std::vector<Action> actions;
  for (int first = 0; first < m; first += p)
    for (int turn = 0; turn < v; ++turn)
      for (int i = first; i < std::min(first + p, m); ++i)
        actions.push_back({kind, i, (kind == ActionKind::forward ? turn : v - 1 - turn) * p + rank});
  return actions;
}

/// Passes of the warm-up of 1F1B and one more: if there are as many, a rank keeps activations of all of them.
/// @param behind  number of ranks after this one; its last stage is v - 1 rounds further.
std::int64_t kept_if_there_are(std::int64_t behind, std::int64_t ranks, std::int64_t virtual_stages)
{
  return virtual_stages == 1 ? behind + 1 : 2 * behind + (virtual_stages - 1) * ranks + 1;
}

/// 1F1B with v stages on each rank, interleaved where v > 1. A rank's passes of one direction are those of in_groups(),
/// v m of them.
PipelineSchedule alternating(const std::string& name, int ranks, int virtual_stages, int micro_batches)
{
  PipelineSchedule schedule = empty_schedule(name, ranks, virtual_stages, micro_batches);
  const int passes = virtual_stages * micro_batches;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<Action> forward = in_groups(schedule, rank, ActionKind::forward);
    const std::vector<Action> backward = in_groups(schedule, rank, ActionKind::backward);
    const int behind = ranks - 1 - rank;  // ranks after this one
    const int kept = static_cast<int>(kept_if_there_are(behind, ranks, virtual_stages));
    schedule.max_in_flight[static_cast<std::size_t>(rank)] =
        static_cast<int>(max_in_flight(ranks, virtual_stages, micro_batches, rank));
    std::vector<Action>& actions = schedule.actions[static_cast<std::size_t>(rank)];
    // BEGIN EXERCISE 09.1
    // Warm-up: the forward passes that fill the stages after this one.
    const int warm_up = std::min(kept - 1, passes);
    actions.assign(forward.begin(), forward.begin() + warm_up);
    // Steady state: one forward, one backward. Cool-down: backward only, after the last forward pass.
    for (int i = 0; i < passes; ++i) {
      if (warm_up + i < passes) actions.push_back(forward[static_cast<std::size_t>(warm_up + i)]);
      actions.push_back(backward[static_cast<std::size_t>(i)]);
    }
    // END EXERCISE
  }
  return schedule;
}

}  // namespace

std::int64_t max_in_flight(std::int64_t ranks, std::int64_t virtual_stages, std::int64_t micro_batches,
                           std::int64_t rank)
{
  return std::min(kept_if_there_are(ranks - 1 - rank, ranks, virtual_stages), virtual_stages * micro_batches);
}

PipelineSchedule gpipe(int ranks, int micro_batches)
{
  PipelineSchedule schedule = empty_schedule("gpipe", ranks, 1, micro_batches);
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Action>& actions = schedule.actions[static_cast<std::size_t>(rank)];
    // First all forward passes, then all backward passes: every micro-batch is in flight at once.
    for (const ActionKind kind : {ActionKind::forward, ActionKind::backward})
      for (int i = 0; i < micro_batches; ++i) actions.push_back({kind, i, rank});
    schedule.max_in_flight[static_cast<std::size_t>(rank)] = micro_batches;
  }
  return schedule;
}

PipelineSchedule one_forward_one_backward(int ranks, int micro_batches)
{
  return alternating("1f1b", ranks, 1, micro_batches);
}

PipelineSchedule interleaved(int ranks, int virtual_stages, int micro_batches)
{
  check(ranks < 1 || micro_batches % ranks == 0,
        fmt::format("{} micro-batches do not form groups of {}, one for each rank", micro_batches, ranks));
  return alternating("interleaved", ranks, virtual_stages, micro_batches);
}

PipelineSchedule forward_only(int ranks, int virtual_stages, int micro_batches)
{
  PipelineSchedule schedule = empty_schedule("forward-only", ranks, virtual_stages, micro_batches);
  for (int rank = 0; rank < ranks; ++rank)
    schedule.actions[static_cast<std::size_t>(rank)] = in_groups(schedule, rank, ActionKind::forward);
  const int left_out = (ranks - micro_batches % ranks) % ranks;  // missing from the last group, v - 1 times
  schedule.idle_formula = share_of(ranks - 1 + (virtual_stages - 1) * left_out, virtual_stages * micro_batches);
  return schedule;
}

}  // namespace rankwise
