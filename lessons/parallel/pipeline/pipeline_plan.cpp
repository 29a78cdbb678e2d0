#include "lessons/parallel/pipeline/pipeline_plan.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lessons/frame/replicas.hpp"
#include "lessons/parallel/pipeline/pipeline.hpp"
#include "lessons/parallel/pipeline/stages.hpp"
#include "lessons/parallel/pipeline/stash.hpp"

namespace rankwise {

PipelinePlan::PipelinePlan(const ModelConfig& c, const ActivationShape& s, const std::vector<Range>& units,
                           PipelineSchedule of_a_step)
    : config(c),
      shape(s),
      table(c, s.part),
      stages(describe_stages(table, units)),
      schedule(std::move(of_a_step)),
      costs(stage_costs(c, units, s.rows() / s.part.count, s.T, s.recompute))
{
}

std::vector<PipelineStage> PipelinePlan::stages_of(int rank) const
{
  std::vector<PipelineStage> own;
  for (const PipelineStage& stage : stages)
    if (schedule.rank_of(stage.number) == rank) own.push_back(stage);
  return own;
}

ActivationShape PipelinePlan::shape_of(const PipelineStage& stage) const
{
  ActivationShape of_stage = shape;
  of_stage.units = stage.units;
  return of_stage;
}

int PipelinePlan::in_flight(const PipelineStage& stage) const
{
  return most_in_flight(schedule.actions[static_cast<std::size_t>(schedule.rank_of(stage.number))], stage.number);
}

std::int64_t PipelinePlan::activation_bytes(int rank) const
{
  std::int64_t bytes = rankwise::activation_bytes(config, shape) - kept_bytes(config, shape);  // the shared block
  for (const PipelineStage& stage : stages_of(rank))
    bytes += in_flight(stage) * kept_bytes(config, shape_of(stage));
  return bytes;
}

std::int64_t PipelinePlan::flops_of(int rank) const
{
  std::int64_t flops = 0;
  for (const Action& action : schedule.actions[static_cast<std::size_t>(rank)])
    flops += costs[static_cast<std::size_t>(action.stage)].of(action.kind);
  return flops;
}

PipelinePlan plan_of(const PipelineParallelOptions& options, int N)
{
  const Division division = divide(options, {0, N});
  return {options.config(), division.shape,
          stage_units(options.pipeline, options.config(), N, division.batch.sequence),
          make_schedule(options.pipeline, N, division.micro_batches())};
}

void charge(VirtualClock* clock, const PipelinePlan& plan, const Action& action)
{
  if (clock == nullptr) return;
  clock->charge_compute(plan.costs[static_cast<std::size_t>(action.stage)].of(action.kind), name_of(action.kind));
}

std::string describe(const PipelinePlan& plan)
{
  return fmt::format("{} micro-batches of {} by {}; {}", plan.schedule.micro_batches, plan.shape.B,
                     plan.schedule.name, describe_stages(plan));
}

std::string describe_stages(const PipelinePlan& plan)
{
  std::vector<std::string> blocks;
  std::int64_t most = 0, sum = 0;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    blocks.push_back(fmt::format("{}", plan.shape_of(plan.stages[s]).blocks(plan.config)));
    most = std::max(most, plan.costs[s].forward);
    sum += plan.costs[s].forward;
  }
  const double mean = static_cast<double>(sum) / static_cast<double>(plan.stages.size());
  return fmt::format("stages of {} blocks (the largest has {:.2f} times the mean work)", fmt::join(blocks, ", "),
                     static_cast<double>(most) / mean);
}

std::int64_t token_elements(const ParameterTable& table)
{
  return table.entries().front().elements.count;
}

std::int64_t message_bytes(const PipelinePlan& plan, Algorithm algorithm, DType gradients, const Topology& line,
                           const Topology& two_ranks, int rank)
{
  const int ranks = plan.schedule.ranks;
  const CollectiveShape loss{"all-reduce", algorithm, DType::i64, loss_numbers};
  const auto tied = tied_calls(ranks, rank, algorithm, gradients, token_elements(plan.table));
  return scratch_bytes({loss}, line, rank) + host_values_bytes(line.device, ranks) +
         scratch_bytes(tied, two_ranks, rank == 0 ? 0 : 1) +
         Pipeline::bytes(ranks, plan.schedule.virtual_stages, rank, plan.shape.type, plan.rows());
}

Traffic row_traffic(const PipelineSchedule& schedule, int rank, DType type, const Shape& rows)
{
  const std::int64_t messages =
      std::ranges::count_if(schedule.actions[static_cast<std::size_t>(rank)], [&](const Action& action) {
        const int end = action.kind == ActionKind::forward ? schedule.stages() - 1 : 0;  // no stage comes after it
        return action.kind != ActionKind::backward_weights && action.stage != end;
      });
  return {messages, messages * bytes_of(type) * rows.elements()};
}

std::vector<CollectiveShape> tied_calls(int ranks, int rank, Algorithm algorithm, DType type, std::int64_t elements)
{
  if (ranks == 1 || (rank != 0 && rank != ranks - 1)) return {};
  return {{"all-reduce", algorithm, type, elements}};
}

}  // namespace rankwise
