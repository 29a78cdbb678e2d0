#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/partition.hpp"
#include "common/program/options.hpp"
#include "gpt2/config.hpp"
#include "lessons/frame/options.hpp"
#include "lessons/parallel/pipeline/pipeline_schedule.hpp"

/// @file
/// The options of a pipeline, and of a run in which all ranks form one.

namespace rankwise {

/// `--schedule`.
enum class ScheduleKind : std::uint8_t {
  gpipe,                     ///< all forward passes, then all backward passes
  one_forward_one_backward,  ///< 1F1B: after a warm-up forward and backward passes alternate
  interleaved,               ///< 1F1B with several stages on each rank
};

/// `--schedule` and the options that go with it.
struct PipelineOptions {
  ScheduleKind schedule = ScheduleKind::one_forward_one_backward;  ///< order of the passes on each rank
  int virtual_stages = 0;  ///< v, stages on each rank; 0: two if interleaved, else one
  std::string partition;   ///< blocks of each stage, as "3,3,4,2"; empty: stages of about the same work

  /// v, with the default in the place of 0.
  int stages_of_a_rank() const;
};

/// Declares all of them.
void declare(OptionTable& table, PipelineOptions& options);

/// Options of training, and of a pipeline of N ranks.
struct PipelineParallelOptions : LessonOptions {
  PipelineOptions pipeline;  ///< schedule and stages
};

/// The whole global batch passes through one pipeline of all N ranks, in micro-batches of one shape.
Division divide(const PipelineParallelOptions& options, RankOf rank);
/// Declares them.
void declare(OptionTable& table, PipelineParallelOptions& options);
/// Refuses sizes that do not match each other, and pipelines that check_pipeline() refuses.
void check_lesson(const PipelineParallelOptions& options, int N);

/// Default of --micro-batch: the largest that gives at least max(p, 4) micro-batches, with interleaving a multiple
/// of p of them; at least 1.
/// @param share  sequences that pass through the pipeline in a step.
/// @param ranks  p.
std::int64_t default_micro_batch(const PipelineOptions& options, std::int64_t share, int ranks);

/// G, B and T where the sequences of each replica pass through a pipeline: without --micro-batch, B is
/// default_micro_batch().
BatchShape pipelined_batch(const TrainingOptions& options, const PipelineOptions& pipeline, const Layout& layout);

/// Refuses a pipeline for which there is no schedule.
/// @param ranks          p.
/// @param sequences      sequences that pass through the pipeline in a step.
/// @param micro_batches  m.
/// @throws UserError  for more stages than blocks; for m that is not a multiple of p with interleaving; for virtual
///                    stages in other schedules; and for partitions that parse_partition() refuses. The message
///                    lists the values that are possible.
void check_pipeline(const PipelineOptions& options, const ModelConfig& config, int ranks, std::int64_t sequences,
                    std::int64_t micro_batches);

/// The values of --micro-batch that give a number of micro-batches that @p fits accepts, at most eight, as the
/// beginning of a remedy; empty if there are none.
/// @param sequences  sequences that pass through the pipeline in a step.
std::string micro_batches_remedy(std::int64_t sequences, const std::function<bool(std::int64_t)>& fits);

/// The schedule that the options ask for.
PipelineSchedule make_schedule(const PipelineOptions& options, int ranks, std::int64_t micro_batches);

/// The units of each stage: from `--partition`, or by make_stages(), which balances the work.
std::vector<Range> stage_units(const PipelineOptions& options, const ModelConfig& config, int ranks,
                               std::int64_t sequence);

}  // namespace rankwise
