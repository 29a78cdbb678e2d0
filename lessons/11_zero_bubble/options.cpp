#include "lessons/11_zero_bubble/options.hpp"

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "lessons/11_zero_bubble/zero_bubble_schedule.hpp"

namespace rankwise {

BatchShape ZeroBubbleOptions::batch(int N) const
{
  return TrainingOptions::batch(default_micro_batch(pipeline, share(N), N));
}

ActivationShape ZeroBubbleOptions::activation_shape(RankOf rank) const
{
  return plan_of(*this, rank.ranks).shape;
}

void declare(OptionTable& table, ZeroBubbleOptions& options)
{
  declare(table, static_cast<LessonOptions&>(options));
  table.add("Pipeline parallelism", "partition", options.pipeline.partition,
            "blocks of each stage, as 3,3,4,2; empty: stages of about the same work");
}

void check_lesson(const ZeroBubbleOptions& options, int N)
{
  TrainingOptions chosen = options;
  chosen.micro_batch = options.batch(N).micro_batch;
  check_options(chosen, options.layout(N));
  const std::int64_t sequences = options.share(N), m = sequences / chosen.micro_batch;
  check_pipeline(options.pipeline, options.config(), N, sequences, m);
  if (m < N)
    throw UserError(fmt::format("Zero bubble needs as many micro-batches as ranks, {}; there are {}.", N, m),
                    fmt::format("Use {}a larger --global-batch, or lesson 09 with --schedule=1f1b.",
                                micro_batches_remedy(sequences, [&](std::int64_t fits) { return fits >= N; })));
}

PipelinePlan plan_of(const ZeroBubbleOptions& options, int N)
{
  const std::int64_t B = options.batch(N).micro_batch;
  ActivationShape shape = options.TrainingOptions::activation_shape(B);
  shape.gradients = options.gradients;
  shape.defers_weights = true;  // between B and W a micro-batch keeps the gradients that W needs
  return {options.config(), shape, stage_units(options.pipeline, options.config(), N, shape.T),
          zero_bubble(N, static_cast<int>(options.share(N) / B))};
}

}  // namespace rankwise
