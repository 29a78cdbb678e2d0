#include "lessons/parallel/pipeline/pipeline_costs.hpp"

#include <fmt/format.h>

#include "common/cuda/devices.hpp"
#include "gpt2/adamw.hpp"
#include "lessons/frame/plan.hpp"

namespace rankwise {

Costs costs(const PipelinePlan& plan, const LessonOptions& options, RankOf rank)
{
  const auto [r, p] = rank;
  const std::vector<PipelineStage> stages = plan.stages_of(r);
  const std::int64_t elements = elements_of(ranges_of(plan.table, stages));
  const Topology line = options.topology(p), ends = line.among({0, p - 1});
  CategoryBytes bytes;
  for (const PipelineStage& stage : stages)
    bytes +=
        Arithmetic(options.arithmetic)
            .gradient_bytes(gradient_layout(plan.table, stage, options.gradients), plan.schedule.micro_batches);
  bytes[Category::parameters] = bytes_of(options.precision) * elements;
  bytes[Category::optimizer] = adamw_bytes(elements, options.precision);
  bytes[Category::activations] = plan.activation_bytes(r);
  bytes[Category::workspace] = workspace_bytes(plan.config, plan.shape) + kernel_bytes(options.device);
  bytes[Category::communication] = message_bytes(plan, options.algorithm(), options.gradients, line, ends, r);

  Costs costs =
      costs_on_device(bytes, {{"pp", "a step", row_traffic(plan.schedule, r, plan.shape.type, plan.rows()),
                               "m B T C elements a boundary and direction"}});
  const auto tied = tied_calls(p, r, options.algorithm(), options.gradients, token_elements(plan.table));
  if (p > 1)
    costs.sent.push_back({"tied", "a step, of the tied embedding", expected_traffic(tied, ends, r == 0 ? 0 : 1),
                          "2 V C in all, between first and last stage"});
  return costs;
}

std::string suggest_options(const PipelineParallelOptions& options, int N, std::int64_t bytes)
{
  PipelineParallelOptions smaller = options;
  SmallerRun run = smaller_run(smaller, N, bytes);
  const bool keeps_more = options.pipeline.stages_of_a_rank() == 1;  // than 1f1b with one stage a rank
  if ((keeps_more &&
       run.fits_with("--schedule=1f1b", smaller.pipeline.schedule, ScheduleKind::one_forward_one_backward)) ||
      run.fits_with("--recompute=block", smaller.recompute_blocks, true) || fits_with_one_sequence(run, smaller))
    return run.enough();
  return run.least(fmt::format("with {} stages", N * options.pipeline.stages_of_a_rank()),
                   "Start more ranks, or use a smaller model.");
}

}  // namespace rankwise
