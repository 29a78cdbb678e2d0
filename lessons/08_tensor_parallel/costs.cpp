#include "lessons/08_tensor_parallel/costs.hpp"

#include <fmt/format.h>

#include "common/cuda/devices.hpp"
#include "gpt2/smaller_run.hpp"
#include "lessons/08_tensor_parallel/split_plan.hpp"
#include "lessons/frame/frame.hpp"

namespace rankwise {

namespace {

SplitPlan plan_of(const TensorParallelOptions& options, RankOf rank)
{
  const ActivationShape shape = options.activation_shape(rank);
  return {options.config(),
          shape,
          options.share(rank.ranks) / shape.B,
          gradient_layout(ParameterTable(options.config(), shape.part), options.gradients),
          Arithmetic(options.arithmetic).keeps_tied_apart(),
          options.algorithm()};
}

}  // namespace

Costs costs(const TensorParallelOptions& options, RankOf rank)
{
  const SplitPlan plan = plan_of(options, rank);
  const Part part = plan.shape.part;
  const int replica = rank.rank / part.count;
  const auto along = [&](const std::string& axis) {
    return options.topology(rank.ranks).among(line_of(options.axes(rank.ranks), rank.rank, axis));
  };
  const Topology tp = along("tp"), dp = along("dp");

  Costs costs;
  CategoryBytes& bytes = in_tier(Tier::device, costs.kept);
  bytes = Arithmetic(options.arithmetic).gradient_bytes(plan.gradients, plan.passes);
  bytes[Category::parameters] = bytes_of(options.precision) * plan.gradients.elements;
  bytes[Category::optimizer] = adamw_bytes(plan.gradients.elements, options.precision);
  bytes[Category::activations] = activation_bytes(plan.config, plan.shape);
  bytes[Category::workspace] = workspace_bytes(plan.config, plan.shape) + kernel_bytes(options.device);
  bytes[Category::communication] = message_bytes(plan, tp, dp, part.index, replica) +
                                   host_values_bytes(options.device, part.count) +
                                   host_values_bytes(options.device, options.split.dp);
  costs.most = costs.kept;

  costs.sent = {{"tp", "a step", part_traffic(plan, tp, part.index), describe_part_traffic(plan.shape)}};
  if (options.split.dp > 1)
    costs.sent.push_back(
        {"dp", "a step, to replicas", replica_traffic(plan, dp, replica), "2 (dp-1)/dp of a part's gradients"});
  return costs;
}

std::string suggest_options(const TensorParallelOptions& options, int N, std::int64_t bytes)
{
  const int t = options.split.parts(N);
  TensorParallelOptions smaller = options;
  const auto costs_of_rank = [&](RankOf rank) { return costs(smaller, rank); };
  SmallerRun run([&] { return largest_on_device(costs_of_rank, N).total(); }, bytes);
  const bool divides = t > 1 && options.batch(N).sequence % t == 0;
  if ((divides && run.fits_with("--sequence-parallel", smaller.split.sequence_parallel, true)) ||
      (divides && run.fits_with("--regather", smaller.split.regather, true)) ||
      run.fits_with("--recompute=block", smaller.recompute_blocks, true) ||
      (options.gradients == DType::f32 && run.fits_with("--micro-batch=1", smaller.micro_batch, std::int64_t{1})))
    return run.enough();
  return run.least(fmt::format("with {} tensor-parallel ranks", t),
                   "Divide the model among more ranks, or use a smaller one.");
}

void report_plan(Report& report, const TensorParallelOptions& options, int N)
{
  report.comment(describe_split(options.config(), options.part({0, N})));
}

}  // namespace rankwise
