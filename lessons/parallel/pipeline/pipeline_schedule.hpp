#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// @file
/// A pipeline schedule as data: for each rank a list of forward and backward passes, in order.
///
/// A model is cut into stages, runs of adjacent units. Stage s is on rank s mod p, so with v virtual stages a rank
/// holds stages r, r + p, ... A micro-batch passes forward through all stages and then backward through all of
/// them. Messages are implied: a stage's output goes to the rank of the next stage, the gradient of its input to
/// the rank of the one before.

namespace rankwise {

/// Kind of pass of one micro-batch through one stage. The schedules of this lesson have whole backward passes; a
/// list may have the two halves instead, as in lesson 11 (zero bubble).
enum class ActionKind : std::uint8_t {
  forward,           ///< F: the forward pass of the stage
  backward,          ///< B and W together
  backward_input,    ///< B: the gradient of the stage's input, which the stage before waits for
  backward_weights,  ///< W: the gradients of the stage's parameters, which no rank waits for
};

/// One entry of a rank's list.
struct Action {
  ActionKind kind;      ///< forward, or backward or one half of it
  int micro_batch = 0;  ///< 0 .. m - 1
  int stage = 0;        ///< 0 .. v p - 1

  /// Equal in all three members.
  friend bool operator==(const Action&, const Action&) = default;
};

/// As "forward of micro-batch 3 in stage 1".
std::string describe(const Action& action);
/// As "forward" or "backward-input": the name in timelines and traces.
std::string name_of(ActionKind kind);

/// The work of p ranks in one step.
struct PipelineSchedule {
  std::string name;                          ///< as in `--schedule`
  int ranks = 1;                             ///< p
  int virtual_stages = 1;                    ///< v
  int micro_batches = 1;                     ///< m
  std::vector<std::vector<Action>> actions;  ///< each rank's, in order
  std::vector<int> max_in_flight;  ///< per rank: micro-batches whose activations of one stage are held at once
  double idle_formula = 0;         ///< idle share with equal stages and F = B = W, by the formula of its paper

  /// v p.
  int stages() const { return virtual_stages * ranks; }
  /// The rank that holds a stage.
  int rank_of(int stage) const { return stage % ranks; }
};

/// Largest number of micro-batches in flight on a rank with 1F1B: m micro-batches pass through v stages on each of p ranks.
/// It is min(p - rank, m); interleaved, with v > 1, min(2 (p - rank - 1) + (v-1) p + 1, v m).
std::int64_t max_in_flight(std::int64_t ranks, std::int64_t virtual_stages, std::int64_t micro_batches,
                           std::int64_t rank);

/// GPipe: all forward passes, then all backward passes. Idle share (p-1)/(m+p-1) of the step; m micro-batches in
/// flight.
/// @source  Huang et al. 2019 (GPipe), section 2.3.
PipelineSchedule gpipe(int ranks, int micro_batches);

/// 1F1B: a warm-up of p - 1 - rank forward passes; a steady state of one forward and one backward pass alternately;
/// a cool-down of the remaining backward passes. Idle share as GPipe.
/// @source  Narayanan et al. 2021 (Megatron-LM), section 2.2.1; Fan et al. 2021 (DAPPLE), section 3.
PipelineSchedule one_forward_one_backward(int ranks, int micro_batches);

/// Interleaved 1F1B: v p stages, v on each rank; micro-batches pass through the stages in groups of p. Idle share
/// (p-1)/(v m+p-1). With v = 1 it is 1F1B.
/// @param micro_batches  a multiple of @p ranks.
/// @source  Narayanan et al. 2021 (Megatron-LM), section 2.2.2.
PipelineSchedule interleaved(int ranks, int virtual_stages, int micro_batches);

/// Forward passes only, for validation: m micro-batches through v p stages in groups of p, of which the last may be
/// smaller. No activations are kept, so max_in_flight is 0; the idle share is that of F alone.
PipelineSchedule forward_only(int ranks, int virtual_stages, int micro_batches);

}  // namespace rankwise
