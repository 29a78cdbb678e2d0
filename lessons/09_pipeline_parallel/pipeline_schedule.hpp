#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// @file
/// Who works on what and in which order: a pipeline schedule is data.
///
/// A model is cut into stages, runs of neighbouring units; stage s is on rank s mod p, so with v virtual stages a rank has
/// stages r, r + p, ... A micro-batch goes through all stages forwards and then through all of them backwards. What is sent is
/// implied: the rows behind a stage to the rank of the next one, their gradient to the rank of the one before.

namespace rankwise {

/// What a rank does with one micro-batch in one stage.
enum class ActionKind : std::uint8_t {
  forward,           ///< F: the forward pass of the stage
  backward,          ///< B and W together
  backward_input,    ///< B: the gradient of the stage's input, which the stage before waits for
  backward_weights,  ///< W: the gradients of the stage's parameters, which nobody waits for
};

/// One entry of a rank's list.
struct Action {
  ActionKind kind;      ///< what is done
  int micro_batch = 0;  ///< with micro-batch 0 .. m - 1
  int stage = 0;        ///< in stage 0 .. v p - 1

  /// The same in all three.
  friend bool operator==(const Action&, const Action&) = default;
};

/// As "forward of micro-batch 3 in stage 1".
std::string describe(const Action& action);
/// As "forward" or "backward-input": how timelines and traces call it.
std::string name_of(ActionKind kind);

/// The work of p ranks in one step.
struct PipelineSchedule {
  std::string name;                          ///< as `--schedule` has it
  int ranks = 1;                             ///< p
  int virtual_stages = 1;                    ///< v
  int micro_batches = 1;                     ///< m
  std::vector<std::vector<Action>> actions;  ///< of each rank, in order
  std::vector<int> max_in_flight;  ///< per rank: micro-batches whose activations of one stage are held at once

  /// v p.
  int stages() const { return virtual_stages * ranks; }
  /// The rank that has a stage.
  int rank_of(int stage) const { return stage % ranks; }
};

/// GPipe: all forward passes, then all backward passes. Idle (p-1)/(m+p-1) of the step; in flight m.
/// @source  Huang et al. 2019 (GPipe), section 2.3.
PipelineSchedule gpipe(int ranks, int micro_batches);

/// 1F1B: p - 1 - rank forward passes to begin with, then one forward and one backward in turns. Idle as GPipe; in flight
/// min(p - rank, m).
/// @source  Narayanan et al. 2021 (Megatron-LM), section 2.2.1; Fan et al. 2021 (DAPPLE), section 3.
PipelineSchedule one_forward_one_backward(int ranks, int micro_batches);

/// 1F1B of v p stages, v of them on a rank: the micro-batches go through the stages in groups of p. Idle (p-1)/(v m+p-1); in
/// flight min(2 (p - rank - 1) + (v-1) p + 1, v m) for v > 1. With v = 1 it is 1F1B.
/// @param micro_batches  a multiple of @p ranks.
/// @source  Narayanan et al. 2021 (Megatron-LM), section 2.2.2.
PipelineSchedule interleaved(int ranks, int virtual_stages, int micro_batches);

/// ZB-H1: 1F1B with the two halves of a backward pass apart; W fills what would be idle, and no rank keeps more than 1F1B's
/// first rank does: in flight p. A rank is idle for (p-1)(F+B-W) of a step, where W takes no longer than F and no longer than B.
/// @param micro_batches  at least @p ranks.
/// @source  Qi et al. 2024 (Zero Bubble Pipeline Parallelism), section 2.1.
PipelineSchedule zero_bubble(int ranks, int micro_batches);

/// The forward passes of a schedule alone, as validation needs them: m micro-batches through v p stages in groups of p, the
/// last group perhaps smaller. Nothing is kept, so no rank has room.
PipelineSchedule forward_only(int ranks, int virtual_stages, int micro_batches);

/// The idle share of a schedule of equal stages, with F = B = W: what its paper says; for forward_only() the same of F alone.
/// @param schedule  of one of the functions above.
double idle_formula(const PipelineSchedule& schedule);

}  // namespace rankwise
