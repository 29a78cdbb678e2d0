#include "lessons/parallel/mesh/mesh_plan.hpp"

#include <algorithm>

#include "common/base/partition.hpp"
#include "lessons/frame/replicas.hpp"
#include "lessons/parallel/pipeline/pipeline.hpp"
#include "lessons/parallel/tensor/row_gradients.hpp"
#include "lessons/parallel/tensor/split.hpp"
#include "lessons/parallel/tensor/split_plan.hpp"
#include "lessons/parallel/tensor/tensor_parallel_messages.hpp"

namespace rankwise {

Range MeshPlan::experts_of(const PipelineStage& stage) const
{
  Range experts{0, 0};
  for (const Parameter& p : pipeline.table.entries()) {
    if (p.expert < 0 || !stage.units.contains(p.unit)) continue;
    if (experts.empty()) experts.first = p.elements.first;
    experts.count += p.elements.count;
  }
  return experts;
}

std::vector<Range> MeshPlan::ranges() const
{
  std::vector<Range> all = ranges_of(pipeline.table, stages());
  for (const PipelineStage& stage : stages())
    if (const Range experts = experts_of(stage); !experts.empty()) all.push_back(experts);
  return all;
}

std::vector<Replicas> MeshPlan::replicas_of(Range range) const
{
  std::vector<Replicas> axes_of_range = replicas;
  if (pipeline.table.experts().contains(range.first))
    std::erase_if(axes_of_range, [](const Replicas& along) { return along.divides_experts; });
  return axes_of_range;
}

bool MeshPlan::owns(Range range) const
{
  const auto counts = [](const Replicas& along) { return !along.divides_experts || along.part.index == 0; };
  return zero || std::ranges::all_of(replicas_of(range), counts);
}

Range MeshPlan::updated(Range range) const
{
  if (!zero) return range;
  for (const Replicas& along : replicas_of(range)) {
    const Range shard = Partition(range.count, along.part.count).shard(along.part.index);
    range = {range.first + shard.first, shard.count};
  }
  return range;
}

std::vector<Range> MeshPlan::updated() const
{
  std::vector<Range> all;
  for (const Range& range : ranges()) all.push_back(updated(range));
  return all;
}

std::vector<Range> MeshPlan::counted(Range range) const
{
  // BEGIN EXERCISE 10.3
  std::vector<Range> counted;
  // The copy of the token embedding in the last stage: the first stage counts it.
  if (is_copy(stages().back(), range)) return counted;
  // Replicas count what they update, and tensor-parallel ranks what they own, so this rank counts what is in both.
  for (const Range& mine : owned_elements(pipeline.table, pipeline.shape.part))
    if (const Range both = intersect(mine, updated(range)); !both.empty()) counted.push_back(both);
  return counted;
  // END EXERCISE
}

std::vector<Tensor> MeshPlan::updated_of(const std::vector<Tensor>& of_ranges) const
{
  std::vector<Tensor> views;
  const std::vector<Range> own = ranges();
  for (std::size_t i = 0; i < own.size(); ++i)
    views.push_back(of_ranges[i].slice({updated(own[i]).first - own[i].first, updated(own[i]).count}));
  return views;
}

std::vector<int> MeshPlan::line(const std::string& axis) const
{
  const std::vector<int> ranks = line_of(axes, rank, axis == "tied" ? "pp" : axis);
  return axis == "tied" ? std::vector{ranks.front(), ranks.back()} : ranks;
}

namespace {

/// The plan of one stage's tensor-parallel messages.
SplitPlan split_plan(const MeshPlan& plan, const PipelineStage& stage)
{
  return {plan.pipeline.config, plan.pipeline.shape_of(stage), plan.runs * plan.pipeline.schedule.micro_batches,
          plan.algorithm};
}

/// A step's collectives among the replicas along an axis, of this rank's gradients and parameters.
std::vector<CollectiveShape> replica_calls(const MeshPlan& plan, const Replicas& along)
{
  std::vector<CollectiveShape> calls;
  const auto sum = [&](std::int64_t count) {
    if (along.added_up) return;
    calls.push_back({plan.zero ? "reduce-scatter" : "all-reduce", plan.algorithm, plan.gradients, count});
    calls.back().leaves = plan.leaves;
  };
  // What is left of a range, once the replicas before these have divided it.
  const auto for_range = [&](Range range, bool gathered) {
    for (const Replicas& level : plan.replicas_of(range)) {
      if (level.axis == along.axis) {
        sum(range.count);
        if (gathered) calls.push_back({"all-gather", plan.algorithm, plan.pipeline.shape.type, range.count});
      }
      if (plan.zero) range.count = Partition(range.count, level.part.count).shard(level.part.index).count;
    }
  };
  for (const Range& range : plan.ranges()) for_range(range, plan.zero);
  if (plan.arithmetic.separates_tied() && plan.layout.pp == 1)
    for_range({0, token_elements(plan.pipeline.table)}, false);
  return calls;
}

/// The sum of the token embedding's gradient over the two ends of a pipeline: of the shard that a rank updates.
std::vector<CollectiveShape> end_calls(const MeshPlan& plan)
{
  return tied_calls(static_cast<int>(plan.layout.pp), plan.place.pp, plan.algorithm, plan.gradients,
                    plan.updated(plan.pipeline.table.entries().front().elements).count);
}

}  // namespace

Traffic MeshPlan::to_parts() const
{
  Traffic sum;
  for (const PipelineStage& stage : stages())
    sum += tensor_parallel_traffic(split_plan(*this, stage), topology("tp"), place.tp);
  return sum;
}

Traffic MeshPlan::to_stages() const
{
  return row_traffic(pipeline.schedule, place.pp, pipeline.shape.type, rows());
}

Traffic MeshPlan::to_other_end() const
{
  return expected_traffic(end_calls(*this), topology("tied"), place.pp == 0 ? 0 : 1);
}

Traffic MeshPlan::to_replicas(const Replicas& along) const
{
  return expected_traffic(replica_calls(*this, along), topology(along.axis), along.part.index);
}

std::int64_t MeshPlan::message_bytes() const
{
  const ActivationShape& shape = pipeline.shape;
  const CollectiveShape loss{"all-reduce", algorithm, DType::i64, loss_numbers};
  std::vector<CollectiveShape> of_parts;
  std::int64_t row_gradients = 0;
  for (const PipelineStage& stage : stages()) {
    const std::vector<CollectiveShape> of_stage = tensor_parallel_collectives(split_plan(*this, stage));
    of_parts.insert(of_parts.end(), of_stage.begin(), of_stage.end());
    row_gradients += RowGradients::elements(ParameterTable(pipeline.config, shape.part, stage.units), shape);
  }
  std::int64_t host_values = 0;
  for (const Axis& axis : axes) host_values += host_values_bytes(job.device, axis.size);
  std::int64_t of_replicas = 0;
  for (const Replicas& along : replicas) {
    std::vector<CollectiveShape> calls = replica_calls(*this, along);
    calls.insert(calls.end(), along.also.begin(), along.also.end());
    calls.push_back(loss);
    of_replicas += scratch_bytes(calls, topology(along.axis), along.part.index);
  }
  return host_values + of_replicas + scratch_bytes(of_parts, topology("tp"), place.tp) +
         scratch_bytes({loss}, topology("pp"), place.pp) +
         scratch_bytes(end_calls(*this), topology("tied"), place.pp == 0 ? 0 : 1) +
         Pipeline::bytes(static_cast<int>(layout.pp), pipeline.schedule.virtual_stages, place.pp, shape.type,
                         rows()) +
         runs * (TensorParallelMessages::bytes(shape, pipeline.config.channels) +
                 bytes_of(DType::f32) * row_gradients);
}

void MeshPlan::reserve_scratch(Group& parts) const
{
  for (const PipelineStage& stage : stages()) reserve_tensor_parallel_scratch(split_plan(*this, stage), parts);
}

MeshPlan plan_of(const MeshParallelOptions& options, RankOf rank)
{
  const auto [r, N] = rank;
  const Division division = divide(options, rank);
  const Layout& layout = division.layout;
  const auto [replica, dp] = division.replica;
  const int p = static_cast<int>(layout.pp);
  return {layout,
          place_of(layout, r),
          {options.config(), division.shape,
           stage_units(options.pipeline, options.config(), p, division.batch.sequence),
           make_schedule(options.pipeline, p, division.micro_batches())},
          options.mesh.zero == 1,
          options.gradients,
          Arithmetic(options.arithmetic),
          options.algorithm(),
          options.topology(N),
          r,
          axes_of(layout),
          {{"dp", {replica, dp}}},
          1,
          options.leaves(),
          division.sequences.first / division.batch.micro_batch};
}

}  // namespace rankwise
