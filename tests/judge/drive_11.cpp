// The exercise of lesson 11: the schedule ZB-H1.

#include "lessons/11_zero_bubble/zero_bubble_schedule.hpp"
#include "tests/judge/driver.hpp"

namespace rankwise::judge {

namespace {

/// Each rank's list of actions, in words.
const Exercise schedule("11.1", [](const Json& in) -> Json {
  Json ranks = Json::array();
  for (const std::vector<Action>& actions : zero_bubble(in["p"], in["m"]).actions) {
    Json list = Json::array();
    for (const Action& action : actions) list.push_back(describe(action));
    ranks.push_back(list);
  }
  return {{"actions by rank", ranks}};
});

}  // namespace

}  // namespace rankwise::judge
