#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpt2/config.hpp"

/// @file
/// A layout of a run on many GPUs, and the layouts to choose from.

namespace rankwise {

/// Which activations the backward pass computes again.
/// @source  Korthikanti et al. 2022, section 5: selective recomputes the attention between query, key, value and its output.
enum class Recompute : std::uint8_t { none, selective, full };
/// Its name.
std::string name_of(Recompute recompute);

/// The tier of the optimizer's states, and the processor that runs AdamW.
enum class OptimizerPlace : std::uint8_t { device, host, disk };
/// Its name.
std::string name_of(OptimizerPlace place);

/// The program that runs: each keeps and sends different things.
enum class System : std::uint8_t {
  rankwise,   ///< the lessons
  megatron,   ///< Megatron-LM
  deepspeed,  ///< DeepSpeed with Megatron-LM's model
};
/// Its name.
std::string name_of(System system);

/// The division of one run.
struct PlannedLayout {
  std::int64_t dp = 1;                    ///< d, replicas
  std::int64_t tp = 1;                    ///< t, ranks that divide every layer
  std::int64_t pp = 1;                    ///< p, ranks that each have a run of layers
  std::int64_t cp = 1;                    ///< c, ranks that divide every sequence
  std::int64_t ep = 1;                    ///< e of the replicas, which share the experts
  std::int64_t micro_batch = 1;           ///< b, sequences of a micro-batch
  std::int64_t chunks = 1;                ///< v, stages on each rank of a pipeline; 1F1B with one, else interleaved
  Recompute recompute = Recompute::none;  ///< what the backward pass computes again
  int zero = 0;                           ///< ZeRO's stage, 0 to 3
  bool sequence_parallel = false;         ///< whether norms and dropout are divided among the t ranks, too
  OptimizerPlace optimizer = OptimizerPlace::device;  ///< where the optimizer is

  /// N = d t p c.
  std::int64_t gpus() const { return dp * tp * pp * cp; }
  /// m, micro-batches of a replica's step.
  std::int64_t micro_batches(std::int64_t global_batch) const { return global_batch / (dp * micro_batch); }
};

/// In one line, as "dp=4 tp=8 pp=2, 64 micro-batches of 1, full recomputation, ZeRO-1".
std::string describe(const PlannedLayout& layout, std::int64_t global_batch);

/// The given parts of a layout; a number that is 0, and a word that is "search", is searched for.
struct LayoutWishes {
  std::int64_t dp = 0;                       ///< replicas
  std::int64_t tp = 0;                       ///< ranks that divide every layer
  std::int64_t pp = 0;                       ///< stages of the pipeline
  std::int64_t cp = 1;                       ///< ranks that divide every sequence
  std::int64_t ep = 0;                       ///< replicas that share the experts
  std::int64_t micro_batch = 0;              ///< sequences of a micro-batch
  std::int64_t chunks = 0;                   ///< stages of a rank
  std::string recompute = "search";          ///< or none, selective, full
  std::string zero = "search";               ///< or 0 to 3
  std::string sequence_parallel = "search";  ///< or off, on
  std::string optimizer = "device";          ///< or host, disk, search
};

/// Why this system cannot run this layout; empty if it can.
std::string obstacle(System system, const ModelConfig& model, const PlannedLayout& layout,
                     std::int64_t global_batch);

/// All layouts of N GPUs that follow the wishes and that the system can run.
/// @param node  GPUs of a node: where tp is searched for, it divides them.
/// @param[out] first_obstacle  why the first layout that follows the wishes cannot run; null: not wanted.
std::vector<PlannedLayout> all_layouts(System system, const ModelConfig& model, const LayoutWishes& wishes,
                                       std::int64_t gpus, std::int64_t global_batch, std::int64_t node,
                                       std::string* first_obstacle = nullptr);

}  // namespace rankwise
