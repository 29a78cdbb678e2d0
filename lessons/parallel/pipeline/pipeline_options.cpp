#include "lessons/parallel/pipeline/pipeline_options.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/error.hpp"
#include "lessons/parallel/pipeline/stages.hpp"

namespace rankwise {

int PipelineOptions::stages_of_a_rank() const
{
  if (virtual_stages > 0) return virtual_stages;
  return schedule == ScheduleKind::interleaved ? 2 : 1;
}

void declare(OptionTable& table, PipelineOptions& o)
{
  const std::string group = "Pipeline parallelism";
  table.add_choice(group, "schedule", o.schedule,
                   {{"gpipe", ScheduleKind::gpipe},
                    {"1f1b", ScheduleKind::one_forward_one_backward},
                    {"interleaved", ScheduleKind::interleaved}},
                   "order of the forward and backward passes of micro-batches; zero bubble is lesson 11");
  table.add(group, "virtual-stages", o.virtual_stages, "stages on each rank, for --schedule=interleaved; 0: two");
  table.add(group, "partition", o.partition,
            "blocks of each stage, as 3,3,4,2; empty: stages of about the same work");
}

std::int64_t default_micro_batch(const PipelineOptions& options, std::int64_t share, int ranks)
{
  const int groups_of = options.schedule == ScheduleKind::interleaved ? ranks : 1;
  for (std::int64_t B = share / std::max(ranks, 4); B > 1; --B)
    if (share % (B * groups_of) == 0) return B;
  return 1;
}

BatchShape pipelined_batch(const TrainingOptions& options, const PipelineOptions& pipeline, const Layout& layout)
{
  BatchShape batch = layout.uneven ? options.cut_batch(layout.dp) : options.batch(options.global_batch / layout.dp);
  if (options.micro_batch == 0)
    batch.micro_batch = default_micro_batch(pipeline, batch.micro_batch, static_cast<int>(layout.pp));
  return batch;
}

namespace {

void check_virtual_stages(const PipelineOptions& options, int ranks)
{
  constexpr int most_stages = 8190;  // a model has no more layers
  if (options.virtual_stages < 0 || options.virtual_stages > most_stages)
    throw UserError(
        fmt::format("--virtual-stages={} is not a number of stages.", options.virtual_stages),
        fmt::format("Use 1 to {} stages on each rank, or 0 for the default of the schedule.", most_stages));
  const bool interleaved = options.schedule == ScheduleKind::interleaved;
  if (!interleaved && options.virtual_stages > 1)
    throw UserError(
        fmt::format("--virtual-stages={} needs --schedule=interleaved: the others have one stage on each rank.",
                    options.virtual_stages),
        "Add --schedule=interleaved, or leave --virtual-stages out.");
  if (interleaved && ranks == 1 && options.stages_of_a_rank() > 1)
    throw UserError(
        fmt::format("--schedule=interleaved with {} stages on a single rank: a rank cannot send to itself.",
                    options.stages_of_a_rank()),
        "Start two ranks or more, or use --virtual-stages=1.");
}

}  // namespace

void check_pipeline(const PipelineOptions& options, const ModelConfig& config, int ranks, std::int64_t sequences,
                    std::int64_t micro_batches)
{
  check_virtual_stages(options, ranks);
  const int v = options.stages_of_a_rank();
  if (v * ranks > config.layers)
    throw UserError(
        fmt::format("{} ranks with {} each make {} stages, but the model has {} blocks and every stage needs one.",
                    ranks, v == 1 ? "a stage" : fmt::format("{} stages", v), v * ranks, config.layers),
        fmt::format("Use at most {} stages, with fewer ranks{}, or a model with more --layers.", config.layers,
                    v == 1 ? "" : " or --virtual-stages"));
  if (options.schedule == ScheduleKind::interleaved && micro_batches % ranks != 0)
    throw UserError(
        fmt::format("--schedule=interleaved takes micro-batches in groups of {}, one for each rank; there are "
                    "{}.",
                    ranks, micro_batches),
        fmt::format("Use {}another --global-batch, or --schedule=1f1b.",
                    micro_batches_remedy(sequences, [&](std::int64_t m) { return m % ranks == 0; })));
  if (!options.partition.empty()) parse_partition(options.partition, config, v * ranks);
}

std::string micro_batches_remedy(std::int64_t sequences, const std::function<bool(std::int64_t)>& fits)
{
  constexpr std::size_t most = 8;
  std::vector<std::int64_t> values;
  for (std::int64_t B = 1; B <= sequences && values.size() < most; ++B)
    if (sequences % B == 0 && fits(sequences / B)) values.push_back(B);
  return values.empty() ? "" : fmt::format("--micro-batch={}, ", fmt::join(values, ", "));
}

PipelineSchedule make_schedule(const PipelineOptions& options, int ranks, std::int64_t micro_batches)
{
  const int m = static_cast<int>(micro_batches);
  switch (options.schedule) {
    case ScheduleKind::gpipe:
      return gpipe(ranks, m);
    case ScheduleKind::one_forward_one_backward:
      return one_forward_one_backward(ranks, m);
    case ScheduleKind::interleaved:
      return interleaved(ranks, options.stages_of_a_rank(), m);
  }
  throw Error("a schedule that has no generator");
}

std::vector<Range> stage_units(const PipelineOptions& options, const ModelConfig& config, int ranks,
                               std::int64_t sequence)
{
  const int stages = ranks * options.stages_of_a_rank();
  if (options.partition.empty()) return make_stages(config, stages, sequence);
  return make_stages(config, parse_partition(options.partition, config, stages));
}

// ---- A run that is one pipeline -------------------------------------------------------------------------------------

Division divide(const PipelineParallelOptions& options, RankOf rank)
{
  const Layout layout{.pp = rank.ranks, .uneven = true};
  Division division = divide_batch(options, layout, 0, pipelined_batch(options, options.pipeline, layout));
  division.shape.gradients = options.gradients;
  return division;
}

void declare(OptionTable& table, PipelineParallelOptions& options)
{
  declare(table, static_cast<LessonOptions&>(options));
  declare(table, options.pipeline);
}

void check_lesson(const PipelineParallelOptions& options, int N)
{
  const Division division = divide(options, {0, N});
  check_options(options, division);
  check_pipeline(options.pipeline, options.config(), N, options.global_batch, division.micro_batches());
}

}  // namespace rankwise
