#include "lessons/11_zero_bubble/options.hpp"

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "lessons/11_zero_bubble/zero_bubble_schedule.hpp"

namespace rankwise {

Division divide(const ZeroBubbleOptions& options, RankOf rank)
{
  const Layout layout{.pp = rank.ranks};
  Division division = divide_batch(options, layout, 0, pipelined_batch(options, options.pipeline, layout));
  division.shape.gradients = options.gradients;
  division.shape.defers_weights = true;  // between B and W a micro-batch keeps the gradients that W needs
  return division;
}

void declare(OptionTable& table, ZeroBubbleOptions& options)
{
  declare(table, static_cast<LessonOptions&>(options));
  table.add("Pipeline parallelism", "partition", options.pipeline.partition,
            "blocks of each stage, as 3,3,4,2; empty: stages of about the same work");
}

void check_lesson(const ZeroBubbleOptions& options, int N)
{
  const Division division = divide(options, {0, N});
  check_options(options, division);
  const std::int64_t sequences = options.global_batch, m = division.micro_batches();
  check_pipeline(options.pipeline, options.config(), N, sequences, m);
  if (m < N)
    throw UserError(fmt::format("Zero bubble needs as many micro-batches as ranks, {}; there are {}.", N, m),
                    fmt::format("Use {}a larger --global-batch, or lesson 09 with --schedule=1f1b.",
                                micro_batches_remedy(sequences, [&](std::int64_t fits) { return fits >= N; })));
}

PipelinePlan plan_of(const ZeroBubbleOptions& options, int N)
{
  const Division division = divide(options, {0, N});
  return {options.config(), division.shape,
          stage_units(options.pipeline, options.config(), N, division.batch.sequence),
          zero_bubble(N, static_cast<int>(division.micro_batches()))};
}

}  // namespace rankwise
