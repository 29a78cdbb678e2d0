#include "lessons/parallel/pipeline/pipeline_parallel_options.hpp"

namespace rankwise {

Division divide(const PipelineParallelOptions& options, RankOf rank)
{
  const Layout layout{.pp = rank.ranks, .uneven = true};
  Division division = divide_batch(options, layout, 0, pipelined_batch(options, options.pipeline, layout));
  division.shape.gradients = options.gradients;
  return division;
}

void declare(OptionTable& table, PipelineParallelOptions& options)
{
  declare(table, static_cast<LessonOptions&>(options));
  declare(table, options.pipeline);
}

void check_lesson(const PipelineParallelOptions& options, int N)
{
  const Division division = divide(options, {0, N});
  check_options(options, division);
  check_pipeline(options.pipeline, options.config(), N, options.global_batch, division.micro_batches());
}

}  // namespace rankwise
