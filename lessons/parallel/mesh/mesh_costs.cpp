#include "lessons/parallel/mesh/mesh_costs.hpp"

#include <fmt/format.h>

#include "common/cuda/devices.hpp"
#include "gpt2/adamw.hpp"
#include "lessons/frame/plan.hpp"
#include "lessons/parallel/mesh/mesh_forecast.hpp"
#include "lessons/parallel/tensor/split_plan.hpp"

namespace rankwise {

CategoryBytes mesh_bytes(const MeshPlan& plan, const LessonOptions& options)
{
  const PipelinePlan& pipeline = plan.pipeline;
  CategoryBytes bytes;
  for (const PipelineStage& stage : plan.stages())
    bytes += Arithmetic(options.arithmetic)
                 .gradient_bytes(gradient_layout(pipeline.table, stage, options.gradients),
                                 {plan.first_micro_batch, pipeline.schedule.micro_batches});
  bytes[Category::parameters] = bytes_of(options.precision) * elements_of(plan.ranges());
  bytes[Category::optimizer] = adamw_bytes(elements_of(plan.updated()), options.precision);
  bytes[Category::activations] = plan.runs * pipeline.activation_bytes(plan.place.pp);
  bytes[Category::workspace] =
      plan.runs * workspace_bytes(pipeline.config, pipeline.shape) + kernel_bytes(options.device);
  bytes[Category::communication] = plan.message_bytes();
  return bytes;
}

Costs costs(const MeshParallelOptions& options, RankOf rank)
{
  const MeshPlan plan = plan_of(options, rank);
  return costs_on_device(
      mesh_bytes(plan, options),
      {{"tp", "a step, to parts", plan.to_parts(), describe_tensor_parallel_traffic(plan.pipeline.shape)},
       {"pp", "a step, to stages", plan.to_stages(), "m B T C elements a boundary and direction"},
       {"tied", "a step, of the tied embedding", plan.to_other_end(),
        "2 V C / tp in all, between first and last stage"},
       {"dp", "a step, to replicas", plan.to_replicas(),
        "2 (dp-1)/dp of a stage's shard" +
            describe_subtrees(options, {plan.place.dp, static_cast<int>(plan.layout.dp)})}});
}

std::int64_t charged_flops(const MeshParallelOptions& options, RankOf rank)
{
  const MeshPlan plan = plan_of(options, rank);
  return plan.pipeline.flops_of(plan.place.pp);
}

std::string suggest_options(const MeshParallelOptions& options, int N, std::int64_t bytes)
{
  MeshParallelOptions smaller = options;
  SmallerRun run = smaller_run(smaller, N, bytes);
  const bool keeps_more = options.pipeline.stages_of_a_rank() == 1;  // than 1f1b with one stage a rank
  if (run.fits_with("--zero=1", smaller.mesh.zero, 1) ||
      (keeps_more &&
       run.fits_with("--schedule=1f1b", smaller.pipeline.schedule, ScheduleKind::one_forward_one_backward)) ||
      run.fits_with("--recompute=block", smaller.recompute_blocks, true) || fits_with_one_sequence(run, smaller))
    return run.enough();
  const auto other = fastest_mesh(N, bytes, [&](const Layout& l) { return forecast(smaller, l, N); });
  return run.least("on this mesh", other ? fmt::format("With these options --dp={} --tp={} --pp={} fits.",
                                                       other->layout.dp, other->layout.tp, other->layout.pp)
                                         : "Start more ranks, or use a smaller model.");
}

}  // namespace rankwise
