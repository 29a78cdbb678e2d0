#include "lessons/parallel/mesh/mesh_zero3_costs.hpp"

#include <array>

#include "common/messages/mesh.hpp"
#include "lessons/frame/plan.hpp"
#include "lessons/frame/replicas.hpp"
#include "lessons/parallel/offload/offload_costs.hpp"
#include "lessons/parallel/offload/offload_report.hpp"
#include "lessons/parallel/tensor/row_gradients.hpp"
#include "lessons/parallel/tensor/split_plan.hpp"
#include "lessons/parallel/tensor/tensor_parallel_messages.hpp"
#include "lessons/parallel/zero/bucket_shards.hpp"
#include "lessons/parallel/zero/sharded_memory.hpp"

namespace rankwise {

StepPlan step_plan(const MeshZeroOptions& options, RankOf rank)
{
  const ShardingPlace place = options.place(rank);
  const ParameterTable table(options.config(), place.part(), {0, -1}, options.gathering.persist);
  StepPlan plan = step_plan(options, table, make_fsdp_units(table, options.gathering.unit), true);
  plan.global_batch /= place.replicas.ranks;  // the sequences of the ranks that share a replica
  return plan;
}

std::vector<GatherStep> gathers(const MeshZeroOptions& options, RankOf rank)
{
  return plan_gathers(step_plan(options, rank).buckets, uses_of(options, true), options.gather_options());
}

OffloadPlan offload_plan(const MeshZeroOptions& options, RankOf rank)
{
  const ShardingPlace place = options.place(rank);
  OffloadPlan plan(options.offload, step_plan(options, rank), gathers(options, rank), place.shard);
  plan.counted = counted_elements(plan.step.table, place.part(), plan.own);
  return plan;
}

namespace {

/// The all-reduces of a micro-batch among replicas, from which bytes and scratch are computed. After the reduce-scatter
/// of a bucket a rank sums its shard of it, one of the ranges plan.own, with the same shard of the other replicas. Where
/// the second gradient of the tied embedding is a separate sum, a rank sums also its elements of that one:
/// sums_of(plan.step).tied is the range of the embedding then, and empty otherwise.
/// @return  one CollectiveShape for each call, with the algorithm and the type of gradients of plan.step; elements in
///          numbers, not bytes.
std::vector<CollectiveShape> replica_calls(const OffloadPlan& plan)
{
  // BEGIN EXERCISE 13.3
  std::vector<CollectiveShape> calls;
  const auto sum = [&](std::int64_t elements) {
    calls.push_back({"all-reduce", plan.step.algorithm, plan.step.gradients, elements});
  };
  for (const Range embedding = sums_of(plan.step).tied; const Range& own : plan.own) {
    sum(own.count);
    if (const Range tied = intersect(own, embedding); !tied.empty()) sum(tied.count);
  }
  return calls;
  // END EXERCISE
}

/// The sizes that decide what a rank sends to the other tensor-parallel ranks.
SplitPlan split_plan(const MeshZeroOptions& options, const StepPlan& plan, RankOf rank)
{
  const Division division = divide(options, rank);
  const ActivationShape& shape = division.shape;
  SplitPlan split{options.config(), shape, division.micro_batches(), plan.algorithm};
  for (const Bucket& unit : plan.buckets)
    if (const std::int64_t n = RowGradients::elements(plan.table, shape, unit.elements); n > 0)
      split.of_row_sums.push_back(n);
  return split;
}

/// The collectives of a step, each once: along replicas, shard and tp.
std::array<std::vector<CollectiveShape>, 3> collectives_by_axis(const OffloadPlan& plan, const SplitPlan& split)
{
  return {replica_calls(plan), collectives_of(plan.step, plan.ranks), tensor_parallel_collectives(split)};
}

/// Bytes that a rank allocates for all messages of a run.
std::int64_t message_bytes(const MeshZeroOptions& options, const OffloadPlan& plan, const SplitPlan& split,
                           RankOf rank)
{
  const std::vector<Axis> axes = options.axes(rank.ranks);
  const auto scratch = [&](std::vector<CollectiveShape> calls, std::size_t axis) {
    calls.push_back({"all-reduce", plan.step.algorithm, DType::i64, loss_numbers});
    return scratch_bytes(calls, topology_along(options, rank, axes[axis].name),
                         coordinates_of(axes, rank.rank)[axis]) +
           host_values_bytes(options.device, axes[axis].size);
  };
  const auto [replicas, shard, tp] = collectives_by_axis(plan, split);
  return scratch(replicas, 0) + scratch(shard, 1) + scratch(tp, 2) +
         TensorParallelMessages::bytes(split.shape, split.config.channels) +
         bytes_of(DType::f32) * RowGradients::elements(plan.step.table, split.shape);
}

}  // namespace

void reserve_scratch(const MeshZeroOptions& options, RankOf rank, Mesh& mesh)
{
  const OffloadPlan plan = offload_plan(options, rank);
  const auto calls = collectives_by_axis(plan, split_plan(options, plan.step, rank));
  for (std::size_t axis = 0; axis < calls.size(); ++axis)
    for (const CollectiveShape& call : calls[axis])
      rankwise::reserve_scratch(call, mesh.group(options.axes(rank.ranks)[axis].name));
}

Traffic hybrid_traffic(const OffloadPlan& plan, const Topology& topology, int replica)
{
  return plan.micro_batches() * expected_traffic(replica_calls(plan), topology, replica);
}

Costs costs(const MeshZeroOptions& options, RankOf rank)
{
  const OffloadPlan plan = offload_plan(options, rank);
  const SplitPlan split = split_plan(options, plan.step, rank);
  const ShardingPlace place = options.place(rank);
  const auto along = [&](const std::string& axis) { return topology_along(options, rank, axis); };
  const std::int64_t messages = message_bytes(options, plan, split, rank);
  Costs costs = sharded_memory(options, divide(options, rank), plan.step, plan.gathers, place.shard, messages);
  move_to_tiers(costs, plan);

  costs.sent = {
      {"tp", "a step, to tensor-parallel ranks", tensor_parallel_traffic(split, along("tp"), place.tp.rank),
       describe_tensor_parallel_traffic(split.shape)},
      {"shard", "a step, to ranks with other shards",
       expected_traffic(collectives_of(plan.step, plan.gathers, plan.ranks), along("shard"), place.shard.rank),
       "(s-1)/s of all that is gathered and of M times the gradients"}};
  if (place.replicas.ranks > 1)
    costs.sent.push_back({"replicas", "a step, to replicas",
                          hybrid_traffic(plan, along("replicas"), place.replicas.rank),
                          "2 (dp-s)/dp of M times this rank's gradients"});
  return costs;
}

std::string suggest_options(const MeshZeroOptions& options, int N, std::int64_t bytes)
{
  MeshZeroOptions o = options;
  SmallerRun run = smaller_run(o, N, bytes);
  const std::int64_t t = options.degrees(N).tp;
  const bool divides = t > 1 && options.batch(1).sequence % t == 0;
  if (run.fits_with("--zero=3", o.zero, 3) || run.fits_with("--shard-ranks=0", o.shard_ranks, 0) ||
      (divides && run.fits_with("--sequence-parallel", o.sequence_parallel, true)) ||
      run.fits_with("--recompute=block", o.recompute_blocks, true) ||
      run.fits_with("--offload=all", o.offload.what, Offload::all) || fits_with_one_sequence(run, o) ||
      run.fits_with("--prefetch=0", o.gathering.prefetch, std::int64_t{0}) ||
      run.fits_with("--unit=branch", o.gathering.unit, UnitKind::branch) ||
      run.fits_with("--reshard=after-forward", o.gathering.reshard, Reshard::after_forward) ||
      run.fits_with("--persist=0", o.gathering.persist, std::int64_t{0}))
    return run.enough();
  return run.least("on this mesh", "Use more ranks, or a smaller model.");
}

void report_plan(Report& report, const MeshZeroOptions& options, int N)
{
  const OffloadPlan plan = offload_plan(options, {0, N});
  if (options.offload.what != Offload::none)
    report_tier_plan(report, costs(options, {0, N}).most, link_traffic(plan));
  report.comment(describe_split(options.config(), options.place({0, N}).part()));
  report.comment(describe_units(plan.step, plan.gathers));
}

}  // namespace rankwise
