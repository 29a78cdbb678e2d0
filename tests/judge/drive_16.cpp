// An exercise of lesson 16: where the rows of a run of tokens go.

#include "gpt2/experts/routing_plan.hpp"
#include "tests/judge/driver.hpp"

namespace rankwise::judge {

namespace {

/// 16.3: the plan of a run of tokens, from that of whole sequences.
const Exercise plan("16.3", [](const Json& in) -> Json {
  const ExpertConfig experts{
      .count = in["E"], .per_token = in["k"], .every = 1, .capacity_factor = in["capacity_factor"]};
  const RoutingShape shape{in["B"], in["T"], experts};
  const std::vector<std::int32_t> choices = in["choices"];
  const RoutingPlan found =
      plan_of_run(plan_routing(choices, shape), choices, shape, {in["first"], in["tokens"]}, in["leaves"]);
  return {{"places", found.places}, {"leaves", found.leaves}, {"chosen", found.chosen}, {"rows", found.rows}};
});

}  // namespace

}  // namespace rankwise::judge
