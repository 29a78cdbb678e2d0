#include "lessons/09_pipeline_parallel/own_stage.hpp"

namespace rankwise {

std::vector<OwnStage> make_own_stages(Run& run, const PipelinePlan& plan, int rank, const Tensor& parameters,
                                      const Workspace& work)
{
  std::vector<OwnStage> stages;
  std::int64_t first = 0;  // of the stage's parameters
  for (const PipelineStage& stage : plan.stages_of(rank)) {
    const Tensor flat = parameters.slice({first, stage.size()});
    stages.push_back(
        {stage,
         Model({run.config, run.kernels.get(), run.shape.part, run.options.dropout, run.options.seed}, stage.units),
         stage_tensors(plan.table, stage, flat),
         run.arithmetic.make_gradient_sum(*run.kernels, *run.stream, run.memory,
                                          gradient_layout(plan.table, stage, run.options.gradients)),
         Stash(run.memory, run.config, plan.shape_of(stage), work, plan.in_flight(stage))});
    first += stage.size();
  }
  return stages;
}

}  // namespace rankwise
