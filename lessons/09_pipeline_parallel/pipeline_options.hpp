#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/partition.hpp"
#include "common/program/options.hpp"
#include "gpt2/config.hpp"
#include "lessons/09_pipeline_parallel/pipeline_schedule.hpp"

/// @file
/// The options of a pipeline.

namespace rankwise {

/// `--schedule`.
enum class ScheduleKind : std::uint8_t {
  gpipe,                     ///< all forward passes, then all backward passes
  one_forward_one_backward,  ///< in turns, as soon as there is something to go backwards
  interleaved,               ///< the same with several stages on each rank
  zero_bubble,               ///< the same with backward passes in two halves
};

/// `--schedule` and what goes with it.
struct PipelineOptions {
  ScheduleKind schedule = ScheduleKind::one_forward_one_backward;  ///< who works on what and when
  int virtual_stages = 0;  ///< v, stages on each rank; 0: two if interleaved, else one
  std::string partition;   ///< blocks of each stage, as "3,3,4,2"; empty: stages of about the same work

  /// v, with what stands for "default" replaced.
  int stages_of_a_rank() const;
};

/// Declares all of them.
void declare(OptionTable& table, PipelineOptions& options);

/// The sequences of a micro-batch where nobody says: the most that make at least max(p, 4) micro-batches of the share, with
/// interleaving a multiple of p; at least 1.
/// @param share  sequences that go through the pipeline in a step.
/// @param ranks  p.
std::int64_t default_micro_batch(const PipelineOptions& options, std::int64_t share, int ranks);

/// Refuses what no schedule can do.
/// @param ranks          p.
/// @param sequences      that go through the pipeline in a step.
/// @param micro_batches  m of them.
/// @throws UserError  for more stages than blocks, m that is not a multiple of p with interleaving or less than p with
///                    zero-bubble, virtual stages of schedules that have none, and partitions as parse_partition(); with the
///                    values that are possible.
void check_pipeline(const PipelineOptions& options, const ModelConfig& config, int ranks, std::int64_t sequences,
                    std::int64_t micro_batches);

/// The schedule that was asked for.
PipelineSchedule make_schedule(const PipelineOptions& options, int ranks, std::int64_t micro_batches);

/// The units of each stage: as `--partition` says, else make_stages() by work.
std::vector<Range> stage_units(const PipelineOptions& options, const ModelConfig& config, int ranks,
                               std::int64_t sequence);

}  // namespace rankwise
