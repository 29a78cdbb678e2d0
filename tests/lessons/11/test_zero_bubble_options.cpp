// The options of lesson 11, and the pipeline that follows from them.

#include <string>

#include "common/base/error.hpp"
#include "lessons/11_zero_bubble/costs.hpp"
#include "lessons/11_zero_bubble/options.hpp"
#include "lessons/11_zero_bubble/zero_bubble_schedule.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

/// The message of check_lesson() for a run; empty if it accepts it.
std::string refusal(const ZeroBubbleOptions& options, int N)
{
  try {
    check_lesson(options, N);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("plan_of: stages of 1F1B, the schedule zero_bubble(), and shapes that defer weight gradients")
{
  ZeroBubbleOptions options;
  options.micro_batch = 2;
  options.pipeline.partition = "1,2,1";
  const PipelinePlan plan = plan_of(options, 3);
  CHECK(plan.schedule.actions == zero_bubble(3, 8).actions);
  for (const PipelineStage& stage : plan.stages) {
    const ActivationShape shape = plan.shape_of(stage);
    CHECK(shape.defers_weights);
    CHECK(shape.blocks(plan.config) == (stage.number == 1 ? 2 : 1));
    CHECK(plan.in_flight(stage) == 3);
    CHECK(plan.activation_bytes(stage.number) == 3 * kept_bytes(plan.config, shape));
    CHECK(costs(options, {stage.number, 3}).kept == costs(options, {stage.number, 3}).most);
  }
}

TEST_CASE("check_lesson: fewer micro-batches than ranks are refused, with the sizes that can be")
{
  ZeroBubbleOptions options;
  CHECK(refusal(options, 4).empty());
  options.micro_batch = 4;
  CHECK(refusal(options, 4).empty());
  options.micro_batch = 8;
  CHECK(refusal(options, 4) ==
        "error: Zero bubble needs as many micro-batches as ranks, 4; there are 2.\n"
        "       Use --micro-batch=1, 2, 4, a larger --global-batch, or lesson 09 with --schedule=1f1b.");
  CHECK(refusal(options, 2).empty());
  options.micro_batch = 2;
  CHECK_THAT(refusal(options, 5), Contains("make 5 stages, but the model has 4 blocks"));
}
