// The exercises of lesson 10: a mesh of ranks.

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "common/base/error.hpp"
#include "common/messages/mesh.hpp"
#include "lessons/parallel/mesh/mesh_forecast.hpp"
#include "tests/judge/driver.hpp"
#include "tests/lessons/10/mesh_plans.hpp"

namespace rankwise::judge {

namespace {

/// Axes with these numbers of ranks.
std::vector<Axis> axes_with(const Json& sizes)
{
  std::vector<Axis> axes;
  for (const Json& size : sizes) axes.push_back({"axis " + std::to_string(axes.size()), size});
  return axes;
}

/// The coordinates of some ranks.
const Exercise coordinates("10.1", [](const Json& in) -> Json {
  Json all = Json::array();
  for (const Json& rank : in["ranks"]) all.push_back(coordinates_of(axes_with(in["sizes"]), rank));
  return {{"coordinates", all}};
});

/// The ranks along an axis through each rank.
const Exercise lines("10.2", [](const Json& in) -> Json {
  const std::vector<Axis> axes = axes_with(in["sizes"]);
  const std::string name = in["axis"];
  Json all = Json::array();
  try {
    for (int rank = 0; rank < in["ranks"]; ++rank) all.push_back(line_of(axes, rank, name));
  } catch (const Error&) {
    return {{"lines", "an error"}};
  }
  return {{"lines", all}};
});

/// What each rank of a mesh counts of each of its ranges, as first element and number.
const Exercise counted("10.3", [](const Json& in) -> Json {
  const Layout layout{.dp = in["dp"], .tp = in["tp"], .pp = in["pp"]};
  testing::MeshPlanOptions options{.config = testing::tiny_config(in["layers"], in["heads"], in["channels"], 8),
                                   .passes = 4 * layout.pp,
                                   .zero = in["zero"]};
  if (in["interleaved"]) options.schedule = ScheduleKind::interleaved;
  Json all = Json::array();
  testing::for_each_place(layout, [&](const MeshCoordinates& place) {
    const MeshPlan plan = testing::mesh_plan(layout, place, options);
    for (const Range& range : plan.ranges()) {
      Json found = Json::array();
      for (const Range& one : plan.counted(range)) found.push_back({one.first, one.count});
      all.push_back(
          {{"dp", place.dp}, {"tp", place.tp}, {"pp", place.pp}, {"first", range.first}, {"counted", found}});
    }
  });
  return {{"ranges", all}};
});

/// The mesh that is chosen among forecasts of some.
const Exercise fastest("10.4", [](const Json& in) -> Json {
  const auto forecast = [&](const Layout& layout) -> std::optional<MeshForecast> {
    for (const Json& one : in["forecasts"])
      if (one["dp"] == layout.dp && one["tp"] == layout.tp && one["pp"] == layout.pp)
        return MeshForecast{layout, one["bytes"], one["step_s"]};
    return {};
  };
  const std::optional<MeshForecast> best = fastest_mesh(in["ranks"], in["capacity"], forecast);
  if (!best) return {{"best", "none"}};
  const Layout& layout = best->layout;
  return {{"best",
           {{"dp", layout.dp},
            {"tp", layout.tp},
            {"pp", layout.pp},
            {"bytes", best->bytes},
            {"step_s", best->step_s}}}};
});

}  // namespace

}  // namespace rankwise::judge
