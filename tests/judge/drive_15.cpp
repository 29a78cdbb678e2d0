// The exercise of lesson 15: where the rows of a micro-batch go.

#include "gpt2/experts/routing_plan.hpp"
#include "tests/judge/driver.hpp"

namespace rankwise::judge {

namespace {

/// 15.1: the plan of a micro-batch.
const Exercise plan("15.1", [](const Json& in) -> Json {
  const ExpertConfig experts{
      .count = in["E"], .per_token = in["k"], .every = 1, .capacity_factor = in["capacity_factor"]};
  const std::vector<std::int32_t> choices = in["choices"];
  const RoutingPlan found = plan_routing(choices, {in["B"], in["T"], experts});
  return {{"places", found.places}, {"leaves", found.leaves}, {"chosen", found.chosen}, {"rows", found.rows}};
});

}  // namespace

}  // namespace rankwise::judge
