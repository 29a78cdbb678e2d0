#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "gpt2/config.hpp"
#include "lessons/17_choose_a_layout/layout.hpp"
#include "lessons/17_choose_a_layout/machine.hpp"

/// @file
/// The model of time: how long a step takes on a machine, from the sizes, the layout and the machine's constants.

namespace rankwise {

/// The planned run: model and batch, program and machine.
struct Job {
  ModelConfig model;                     ///< sizes
  std::int64_t global_batch = 0;         ///< G, sequences of a step
  System system = System::rankwise;      ///< whose program
  DeviceKind device = DeviceKind::cuda;  ///< what computes
  bool half = true;                      ///< whether parameters and activations have 16 bits, else 32
  bool half_gradients = false;           ///< whether gradients have 16 bits: Megatron's fp16 instead of bf16
  bool slow_links = false;               ///< whether the fast links of a node are not used
};

/// Seconds of a step of the rank that all others wait for, by what it does. Their sum is the step.
struct StepTime {
  double compute = 0;    ///< products, attention and the rest of the layers, once
  double recompute = 0;  ///< forward passes of the blocks that the backward pass makes again
  double host = 0;       ///< the device waits for the host to start its kernels
  double tensor = 0;     ///< exposed sums among the tp ranks
  double bubble = 0;     ///< idle in the pipeline's warm-up and end
  double pipeline = 0;   ///< exposed messages between stages
  double context = 0;    ///< exposed messages among the cp ranks
  double experts = 0;    ///< exposed messages to experts and back
  double data = 0;       ///< exposed sums of gradients, or ZeRO's gathers
  double update = 0;     ///< AdamW, and the optimizer's moves to the host
  double hidden = 0;     ///< communication behind computation; not part of the step

  /// The step: the sum of its parts.
  double total() const;
};

/// One part of a step, with its name for reports.
struct StepPart {
  const char* name;           ///< as "bubble"
  double StepTime::*seconds;  ///< which one
};
/// All parts that add up to a step.
std::span<const StepPart> step_parts();

/// Seconds of one step.
///
/// A block's kernels are matrix products, whose rate depends on their shape, and passes over memory; each pass of a layer
/// has two sums among the tp ranks. The slower of device and host decides. With m micro-batches the slowest of p stages
/// takes m times its time, and the others' first and last passes are the bubble. Then gradients are summed and parameters
/// updated.
///
/// @source  Narayanan et al. 2021 (Megatron-LM), section 3; Korthikanti et al. 2022, section 4, for the layer's parts;
///          Thakur et al. 2005 for sums along a ring. docs/planner.md compares it with measurements.
StepTime step_time(const Job& job, const PlannedLayout& layout, const Machine& machine);

/// Seconds of forward and backward pass of one layer alone, without recomputation's bubble or any message but those along tp.
double layer_time(const Job& job, const PlannedLayout& layout, const Machine& machine);

}  // namespace rankwise
