#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "lessons/17_choose_a_layout/layout.hpp"
#include "lessons/17_choose_a_layout/time.hpp"
#include "lessons/frame/costs.hpp"

/// @file
/// Memory of the GPU that needs most. Of the lessons it is what their own formulas say, of other programs a sum of terms from
/// their papers.

namespace rankwise {

/// Bytes of a rank that have one reason.
struct MemoryTerm {
  std::string name;     ///< as "parameters"
  double bytes = 0;     ///< on the device, or on the host
  std::string formula;  ///< in letters, with its source
};

/// Memory of one rank.
struct RankMemory {
  std::vector<MemoryTerm> device;  ///< on the GPU
  double host = 0;                 ///< bytes on the host
  std::string why;                 ///< what this stage has more, or less, than others

  /// Bytes on the GPU.
  double total() const;
};

/// Memory of the first rank of each stage of the pipeline; the other ranks of a stage have no more.
/// @param most  bytes on the GPU: stages after the first that needs more are left out.
std::vector<RankMemory> memory_by_stage(const Job& job, const PlannedLayout& layout,
                                        double most = std::numeric_limits<double>::infinity());

/// Memory of the rank that needs most; of one that needs more than @p most bytes, if there is one.
RankMemory largest_memory(const Job& job, const PlannedLayout& layout,
                          double most = std::numeric_limits<double>::infinity());

/// Bytes that the rank that needs most has at least, computed at once: its model states, and of the lessons what
/// blocks keep.
double least_bytes(const Job& job, const PlannedLayout& layout);

/// Bytes of parameters, gradients and the optimizer's states of P parameters on one of d replicas.
///
///     the lessons    16 P in f32, 18 P in bf16; ZeRO divides 8 or 12 P of it, then 4 P of gradients, then parameters
///     Megatron-LM    18 P (bf16, 32-bit gradients) or 20 P (fp16, master gradients); ZeRO-1: all but 6 P or 4 P over d
///     DeepSpeed      ZeRO-0: 16 P, 1: 4 P + 12 P / d, 2: 2 P + 14 P / d, 3: 16 P / d
///
/// @source  Rajbhandari et al. 2020 (ZeRO), section 3.1 and Table 1; Megatron-LM's documentation of its distributed
///          optimizer.
double state_bytes(const Job& job, double P, int zero, double d);

/// Bytes of activations that one layer keeps for its backward pass, of a micro-batch of b sequences.
///
///     T b C (10 + 24 / t + 5 H T / (C t))   without recomputation; with sequence parallelism T b C (34 + 5 H T / C) / t
///     without 5 H T / C                     with selective recomputation
///     2 T b C                               with full recomputation
///
/// @source  Korthikanti et al. 2022, Table 2.
double layer_activation_bytes(const Job& job, const PlannedLayout& layout);

/// The lesson that runs a layout.
struct LessonRun {
  std::string command;                 ///< how it is started
  std::function<Costs(RankOf)> costs;  ///< its memory and traffic
};
/// The lesson for this layout: 10 for a mesh, 16 with cp or experts, 13 for ZeRO-2, ZeRO-3 and offload.
LessonRun lesson_run(const Job& job, const PlannedLayout& layout);

}  // namespace rankwise
