#include "lessons/parallel/mesh/five_axes_costs.hpp"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lessons/parallel/context/context_gradients.hpp"
#include "lessons/parallel/experts/expert_gradients.hpp"
#include "lessons/parallel/mesh/mesh_costs.hpp"
#include "lessons/parallel/pipeline/schedule_report.hpp"
#include "lessons/parallel/tensor/split_plan.hpp"

namespace rankwise {

namespace {

/// Bytes of the gradients of the second run of tokens, and of those of experts.
CategoryBytes further_gradients(const FiveAxesPlan& plan)
{
  const Arithmetic& arithmetic = plan.ring.arithmetic;
  const std::int64_t M = plan.mesh.pipeline.schedule.micro_batches, e = plan.degrees.ep;
  CategoryBytes bytes;
  for (const PipelineStage& stage : plan.mesh.stages()) {
    const GradientLayout dense = gradient_layout(plan.mesh.pipeline.table, stage, plan.mesh.gradients);
    bytes[further_sums] += ContextGradients::bytes(dense, arithmetic);
    if (plan.expert_blocks(stage) == 0) continue;
    const GradientLayout of_experts = plan.expert_gradients(stage);
    bytes += ExpertGradients::bytes(arithmetic, of_experts, M, e);
    bytes[further_sums] += e * ContextGradients::bytes(of_experts, arithmetic);
  }
  return bytes;
}

}  // namespace

Costs costs(const FiveAxesOptions& options, RankOf rank)
{
  const FiveAxesPlan plan = plan_of(options, rank);
  const MeshPlan& mesh = plan.mesh;
  CategoryBytes bytes = mesh_bytes(mesh, options);
  bytes += further_gradients(plan);
  bytes[Category::workspace] += plan.ring.workspace_bytes();
  bytes[Category::communication] = plan.message_bytes();

  Costs costs = costs_on_device(
      bytes, {{"tp", "a step, to parts", plan.to_parts(), describe_tensor_parallel_traffic(plan.ring.shape)},
              {"cp", "a step, along a sequence", plan.to_context(),
               "blocks of keys and values and their gradients, and sums of gradients"},
              {"pp", "a step, to stages", mesh.to_stages(),
               "m B T C / c elements a boundary and direction, or 1 / tp of it"},
              {"tied", "a step, of the tied embedding", mesh.to_other_end(),
               "2 V C / tp in all, between first and last stage"}});
  for (const Replicas& along : mesh.replicas)
    if (along.axis != "cp")
      costs.sent.push_back({along.axis, "a step, to replicas along " + along.axis, mesh.to_replicas(along),
                            fmt::format("2 ({0}-1)/{0} of a stage's shard", along.axis)});
  return costs;
}

std::int64_t charged_flops(const FiveAxesOptions& options, RankOf rank)
{
  return plan_of(options, rank).flops();
}

// ---- Time -----------------------------------------------------------------------------------------------------------

namespace {

/// The forecasts of all meshes of N ranks.
std::vector<MeshForecast> forecasts(const FiveAxesOptions& options, int N,
                                    const StepSeconds<FiveAxesOptions>& step_seconds = {})
{
  std::vector<MeshForecast> all;
  for (const FiveDegrees& degrees : all_degrees(N, options.experts.count)) {
    FiveAxesOptions other = options;
    other.mesh = options.mesh.with(degrees.layout);
    other.cp = degrees.cp;
    other.ep = degrees.ep;
    const MeshForecast mesh{.layout = degrees.layout, .cp = degrees.cp, .ep = degrees.ep};
    if (const auto one = forecast_with(mesh, other, N, step_seconds)) all.push_back(*one);
  }
  return all;
}

/// The fastest of those that fit in memory, and among equally fast ones the one that needs least; empty if none fits.
std::optional<MeshForecast> fastest(const std::vector<MeshForecast>& all, std::int64_t capacity)
{
  std::optional<MeshForecast> best;
  for (const MeshForecast& one : all)
    if (one.bytes <= capacity && (!best || std::pair(one.step_s, one.bytes) < std::pair(best->step_s, best->bytes)))
      best = one;
  return best;
}

}  // namespace

std::string suggest_options(const FiveAxesOptions& options, int N, std::int64_t bytes)
{
  FiveAxesOptions smaller = options;
  SmallerRun run = smaller_run(smaller, N, bytes);
  if (run.fits_with("--zero=1", smaller.mesh.zero, 1) ||
      (options.experts.count == 1 && run.fits_with("--recompute=block", smaller.recompute_blocks, true)) ||
      fits_with_one_sequence(run, smaller))
    return run.enough();
  const std::optional<MeshForecast> other = fastest(forecasts(smaller, N), bytes);
  return run.least("on this mesh", other
                                       ? fmt::format("With these options another mesh fits: {}.", describe(*other))
                                       : "Start more ranks, or use a smaller model.");
}

void report_plan(Report& report, const FiveAxesOptions& options, int N,
                 const StepSeconds<FiveAxesOptions>& step_seconds)
{
  report_plan(report, plan_of(options, {0, N}).mesh.pipeline, parse_flops(options.messages.flops));
  if (options.messages.link.empty()) return;
  if (N > most_ranks_of_all_five)
    return report.comment(
        fmt::format("forecasts of all meshes are made for up to {} ranks", most_ranks_of_all_five));
  const std::vector<MeshForecast> all = forecasts(options, N, step_seconds);
  report_meshes(report, all, fastest(all, memory_limit(options)));
}

}  // namespace rankwise
