#include "lessons/parallel/mesh/five_axes_plan.hpp"

#include "lessons/frame/replicas.hpp"
#include "lessons/parallel/experts/experts_costs.hpp"
#include "lessons/parallel/pipeline/stages.hpp"

namespace rankwise {

namespace {

/// Sums along cp of a stage's gradients in a micro-batch, in the order of the tree: those of dense parameters, and for each
/// source of rows those of experts.
std::vector<CollectiveShape> sums_of_a_sequence(const FiveAxesPlan& plan, const PipelineStage& stage)
{
  std::vector<CollectiveShape> calls;
  if (!plan.ring.arithmetic.continues_tree()) return calls;
  const auto sum = [&](std::int64_t count) {
    calls.push_back({"all-reduce", plan.mesh.algorithm, plan.mesh.gradients, count});
  };
  const GradientLayout dense = gradient_layout(plan.mesh.pipeline.table, stage, plan.mesh.gradients);
  const std::int64_t halves = plan.ring.runs.order == TokenOrder::zigzag ? runs_of_a_rank : 1;
  for (std::int64_t half = 0; half < halves; ++half) {
    sum(dense.elements);
    if (!dense.tied.empty()) sum(dense.tied.count);
    if (plan.expert_blocks(stage) == 0) continue;
    for (int source = 0; source < plan.degrees.ep; ++source) sum(plan.mesh.experts_of(stage).count);
  }
  return calls;
}

/// Collectives along cp in a micro-batch, of all kinds.
std::vector<CollectiveShape> context_collectives(const FiveAxesPlan& plan)
{
  std::vector<CollectiveShape> calls = plan.ring.exchanges();
  if (plan.has_experts()) calls.push_back({"all-gather", plan.mesh.algorithm, DType::i32, plan.choices()});
  for (const PipelineStage& stage : plan.mesh.stages())
    for (const CollectiveShape& call : sums_of_a_sequence(plan, stage)) calls.push_back(call);
  return calls;
}

}  // namespace

std::int64_t FiveAxesPlan::pairs() const
{
  std::int64_t pairs = 0;
  for (const std::int64_t run : ring.runs.of(context_rank()))
    pairs += visible_pairs(ring.config.mask, ring.runs.T, ring.runs.tokens(run), {0, ring.runs.T});
  return ring.shape.B * pairs;
}

GradientLayout FiveAxesPlan::expert_gradients(const PipelineStage& stage) const
{
  const Range of_stage = mesh.experts_of(stage);
  return {of_stage.count, mesh.gradients, {}, frozen_ranges(mesh.pipeline.table, of_stage)};
}

Traffic FiveAxesPlan::to_parts() const
{
  // In a block with experts their own sums take the place of two: of the branch's output, and of its gradient.
  const ActivationShape& shape = ring.shape;
  const CollectiveShape sum{shape.tokens.count > 1 ? "reduce-scatter" : "all-reduce", mesh.algorithm, shape.type,
                            shape.rows() * ring.config.channels};
  std::int64_t blocks = 0;
  for (const PipelineStage& stage : mesh.stages()) blocks += expert_blocks(stage);
  const std::int64_t micro_batches = mesh.pipeline.schedule.micro_batches;
  return mesh.to_parts() -
         2 * blocks * mesh.runs * micro_batches * expected_traffic(sum, mesh.topology("tp"), mesh.place.tp);
}

Traffic FiveAxesPlan::to_context() const
{
  const auto all = [&](const std::vector<CollectiveShape>& calls) {
    return expected_traffic(calls, mesh.topology("cp"), context_rank());
  };
  Traffic sent;
  for (const PipelineStage& stage : mesh.stages()) {
    const std::int64_t layers = mesh.pipeline.shape_of(stage).blocks(ring.config);
    sent += layers * (ring.shape.recompute ? 2 : 1) * ring.passes(false);
    sent += layers * ring.passes(true);
    sent += layers * all(ring.exchanges());
    sent += expert_blocks(stage) * all({{"all-gather", mesh.algorithm, DType::i32, choices()}});
    sent += all(sums_of_a_sequence(*this, stage));
  }
  sent = mesh.pipeline.schedule.micro_batches * sent;
  sent += mesh.to_replicas(mesh.replicas.back());
  return sent;
}

std::int64_t FiveAxesPlan::flops() const
{
  const PipelineSchedule& schedule = mesh.pipeline.schedule;
  const std::int64_t of_pairs = attention_flops(pairs(), head_channels_here(ring.config, ring.shape));
  std::int64_t flops = 0;
  for (const Action& action : schedule.actions[static_cast<std::size_t>(mesh.place.pp)]) {
    const auto stage = static_cast<std::size_t>(action.stage);
    const std::int64_t layers = mesh.pipeline.shape_of(mesh.pipeline.stages[stage]).blocks(ring.config);
    const std::int64_t passes = action.kind == ActionKind::forward ? 1 : ring.shape.recompute ? 3 : 2;
    flops += without_pairs[stage].of(action.kind) + passes * layers * of_pairs;
  }
  return flops;
}

CollectiveShape FiveAxesPlan::largest_output() const
{
  return {"all-reduce", mesh.algorithm, ring.shape.type,
          ring.shape.most_received(ring.config) * ring.config.channels};
}

std::int64_t FiveAxesPlan::choices() const
{
  return ring.runs.count() * ring.shape.rows() * ring.config.experts.per_token;
}

std::vector<CollectiveShape> FiveAxesPlan::row_exchanges() const
{
  const std::vector<std::int64_t> none(static_cast<std::size_t>(degrees.ep), 0);
  return exchanges_of(ring.config, ring.shape, mesh.algorithm, none, none);
}

std::int64_t FiveAxesPlan::message_bytes() const
{
  const std::int64_t bytes = mesh.message_bytes() + ring.message_bytes();
  if (!has_experts()) return bytes;
  return bytes + bytes_of(DType::i32) * choices() +
         scratch_bytes(row_exchanges(), mesh.topology("ep"), mesh.replicas.front().part.index) +
         scratch_bytes({largest_output()}, mesh.topology("tp"), mesh.place.tp);
}

FiveAxesPlan plan_of(const FiveAxesOptions& options, RankOf rank)
{
  const auto [r, N] = rank;
  const FiveDegrees degrees = options.degrees(N);
  const Layout& layout = degrees.layout;
  const std::vector<Axis> axes = degrees.axes();
  const std::vector<int> at = coordinates_of(axes, r);
  const auto part_along = [&](std::size_t axis) { return Part{at[axis], axes[axis].size}; };
  const Part ep = part_along(2), cp = part_along(3), tp = part_along(4);
  const TokenRuns runs = options.runs(N);
  const ModelConfig config = options.config();
  const int p = static_cast<int>(layout.pp);

  // A micro-batch is two runs of tokens, and each passes through the layers as a micro-batch of its own would.
  const Division division = divide(options, rank);
  const ActivationShape& shape = division.shape;
  const std::vector<Range> units = stage_units(options.pipeline, config, p, runs.T);
  PipelinePlan pipeline(config, shape, units, make_schedule(options.pipeline, p, division.micro_batches()));
  // Each rank stores its experts only. A stage's arithmetic is that of both runs.
  const std::int64_t experts_here = config.experts.count / degrees.ep;
  const Range experts{ep.index * experts_here, experts_here};
  pipeline.table = ParameterTable(config, tp, {0, -1}, 0, experts);
  pipeline.stages = describe_stages(pipeline.table, units);
  const std::int64_t rows = runs_of_a_rank * shape.rows() / tp.count;
  pipeline.costs = stage_costs(config, units, rows, runs.T, shape.recompute);

  const Arithmetic arithmetic(options.arithmetic);
  FiveAxesPlan plan{degrees,
                    {layout,
                     {.dp = at[1] * ep.count + ep.index, .tp = tp.index, .pp = at[0]},
                     pipeline,
                     options.mesh.zero == 1,
                     options.gradients,
                     arithmetic,
                     options.algorithm(),
                     options.topology(N),
                     r,
                     axes,
                     {{.axis = "ep", .part = ep, .divides_experts = true},
                      {.axis = "dp", .part = part_along(1)},
                      {.axis = "cp", .part = cp, .added_up = arithmetic.continues_tree()}},
                     runs_of_a_rank},
                    {config, shape, runs, arithmetic, options.algorithm()},
                    stage_costs(config, units, rows, 0, shape.recompute),
                    experts};
  plan.mesh.replicas.back().also = context_collectives(plan);
  return plan;
}

}  // namespace rankwise
