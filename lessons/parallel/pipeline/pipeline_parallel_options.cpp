#include "lessons/parallel/pipeline/pipeline_parallel_options.hpp"

#include "lessons/parallel/pipeline/pipeline_plan.hpp"

namespace rankwise {

BatchShape PipelineParallelOptions::batch(int N) const
{
  BatchShape shape = cut_batch(1);
  if (micro_batch == 0) shape.micro_batch = default_micro_batch(pipeline, shape.micro_batch, N);
  return shape;
}

ActivationShape PipelineParallelOptions::activation_shape(RankOf rank) const
{
  return plan_of(*this, rank.ranks).shape;
}

void declare(OptionTable& table, PipelineParallelOptions& options)
{
  declare(table, static_cast<LessonOptions&>(options));
  declare(table, options.pipeline);
}

void check_lesson(const PipelineParallelOptions& options, int N)
{
  TrainingOptions chosen = options;
  chosen.micro_batch = options.batch(N).micro_batch;
  check_options(chosen, options.layout(N));
  check_pipeline(options.pipeline, options.config(), N, options.share(N), options.share(N) / chosen.micro_batch);
}

}  // namespace rankwise
