#include "lessons/parallel/pipeline/local_stage.hpp"

namespace rankwise {

std::vector<LocalStage> make_local_stages(Run& run, const PipelinePlan& plan, int rank, const Tensor& parameters,
                                          const Workspace& work)
{
  std::vector<LocalStage> stages;
  std::int64_t first = 0;  // element of the stage in @p parameters
  for (const PipelineStage& stage : plan.stages_of(rank)) {
    const Tensor flat = parameters.slice({first, stage.size()});
    stages.push_back(
        {stage,
         Model({run.config, run.kernels, run.shape.part, run.options.dropout, run.options.seed}, stage.units),
         stage_tensors(plan.table, stage, flat),
         run.arithmetic.make_gradient_sum(run.kernels, *run.stream, run.memory,
                                          gradient_layout(plan.table, stage, run.options.gradients)),
         Stash(run.memory, run.config, plan.shape_of(stage), work, plan.in_flight(stage))});
    first += stage.size();
  }
  return stages;
}

LossSum validate(Run& run, Pipeline& pipeline, const PipelinePlan& plan, std::vector<LocalStage>& stages,
                 Part replicas, const StageForward& forward)
{
  const std::int64_t B = run.batch.micro_batch, all = (run.validation.windows() + B - 1) / B;
  const std::int64_t micro_batches = (all - replicas.index + replicas.count - 1) / replicas.count;
  LossSum loss;
  if (micro_batches <= 0) return loss;
  const PipelineSchedule forwards =
      forward_only(plan.schedule.ranks, plan.schedule.virtual_stages, static_cast<int>(micro_batches));
  pipeline.run(forwards, [&](const Action& action, const Tensor& received, const Tensor& send_buffer) {
    LocalStage& own = stages[plan.place_of(action)];
    InFlight& m = own.stash.before(action);
    m.batch = run.load_validation(m.kept, {(action.micro_batch * replicas.count + replicas.index) * B, B});
    loss += forward(own, m, received, send_buffer);
    own.stash.after(action, false);
  });
  return loss;
}

}  // namespace rankwise
