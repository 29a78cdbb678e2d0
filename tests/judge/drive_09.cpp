// The exercises of lesson 09: pipeline schedules and stages.

#include "lessons/parallel/pipeline/pipeline_schedule.hpp"
#include "lessons/parallel/pipeline/stages.hpp"
#include "lessons/parallel/pipeline/stash.hpp"
#include "tests/judge/driver.hpp"

namespace rankwise::judge {

namespace {

/// Each rank's list of actions, in words.
Json actions_of(const PipelineSchedule& schedule)
{
  Json ranks = Json::array();
  for (const std::vector<Action>& actions : schedule.actions) {
    Json list = Json::array();
    for (const Action& action : actions) list.push_back(describe(action));
    ranks.push_back(list);
  }
  return ranks;
}

/// 09.1: 1F1B, interleaved where a rank has several stages.
const Exercise schedule("09.1", [](const Json& in) -> Json {
  const int p = in["p"], v = in["v"], m = in["m"];
  return {{"actions by rank", actions_of(v == 1 ? one_forward_one_backward(p, m) : interleaved(p, v, m))}};
});

/// 09.2: how many micro-batches a list of actions keeps at once, in each stage.
const Exercise lifetime("09.2", [](const Json& in) -> Json {
  const std::vector<ActionKind> kinds{ActionKind::forward, ActionKind::backward, ActionKind::backward_input,
                                      ActionKind::backward_weights};
  std::vector<Action> actions;
  for (const Json& one : in["actions"]) actions.push_back({kinds[one[0].get<std::size_t>()], one[1], one[2]});
  Json most;
  for (int stage = 0; stage < in["stages"]; ++stage) most.push_back(most_in_flight(actions, stage));
  return {{"most in flight, by stage", most}};
});

/// 09.3: the units of each stage, as first unit and number.
const Exercise balance("09.3", [](const Json& in) -> Json {
  ModelConfig config = preset("nano");
  config.layers = in["layers"];
  config.vocabulary = in["vocabulary"];
  Json units = Json::array();
  for (const Range& stage : make_stages(config, in["stages"].get<int>(), in["sequence"].get<std::int64_t>()))
    units.push_back({stage.first, stage.count});
  return {{"units of each stage", units}};
});

}  // namespace

}  // namespace rankwise::judge
