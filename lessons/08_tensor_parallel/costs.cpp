#include "lessons/08_tensor_parallel/costs.hpp"

#include <fmt/format.h>

#include "common/cuda/devices.hpp"
#include "lessons/frame/plan.hpp"
#include "lessons/frame/replicas.hpp"
#include "lessons/parallel/tensor/row_gradients.hpp"
#include "lessons/parallel/tensor/split_plan.hpp"
#include "lessons/parallel/tensor/tensor_parallel_messages.hpp"

namespace rankwise {

Costs costs(const TensorParallelOptions& options, RankOf rank)
{
  const ModelConfig config = options.config();
  const Division division = divide(options, rank);
  const ActivationShape& shape = division.shape;
  const ParameterTable table(config, shape.part);
  const SplitPlan plan{config, shape, division.micro_batches(), options.algorithm()};
  const std::vector<CollectiveShape> sums =
      gradient_sums(options, gradient_layout(table, options.gradients), options.leaves());
  const int part = shape.part.index, t = shape.part.count, replica = division.replica.rank;
  const Topology tp = topology_along(options, rank, "tp"), dp = topology_along(options, rank, "dp");

  CategoryBytes bytes = unsharded_bytes(options, division);
  std::vector<CollectiveShape> of_replicas = sums;
  of_replicas.push_back({"all-reduce", options.algorithm(), DType::i64, loss_numbers});
  bytes[Category::communication] =
      scratch_bytes(tensor_parallel_collectives(plan), tp, part) + scratch_bytes(of_replicas, dp, replica) +
      TensorParallelMessages::bytes(shape, config.channels) +
      bytes_of(DType::f32) * RowGradients::elements(table, shape) + host_values_bytes(options.device, t) +
      host_values_bytes(options.device, options.split.dp);

  Costs costs = costs_on_device(
      bytes, {{"tp", "a step", tensor_parallel_traffic(plan, tp, part), describe_tensor_parallel_traffic(shape)}});
  if (options.split.dp > 1)
    costs.sent.push_back({"dp", "a step, to replicas", expected_traffic(sums, dp, replica),
                          "2 (dp-1)/dp of P_t" + describe_subtrees(options, division.replica)});
  return costs;
}

std::string suggest_options(const TensorParallelOptions& options, int N, std::int64_t bytes)
{
  const int t = options.split.parts(N);
  TensorParallelOptions smaller = options;
  SmallerRun run = smaller_run(smaller, N, bytes);
  const bool divides = t > 1 && options.batch(1).sequence % t == 0;
  if ((divides && run.fits_with("--sequence-parallel", smaller.split.sequence_parallel, true)) ||
      (divides && run.fits_with("--regather", smaller.split.regather, true)) ||
      run.fits_with("--recompute=block", smaller.recompute_blocks, true) || fits_with_one_sequence(run, smaller))
    return run.enough();
  return run.least(fmt::format("with {} tensor-parallel ranks", t),
                   "Divide the model among more ranks, or use a smaller one.");
}

void report_plan(Report& report, const TensorParallelOptions& options, int N)
{
  report.comment(describe_split(options.config(), divide(options, {0, N}).shape.part));
}

}  // namespace rankwise
