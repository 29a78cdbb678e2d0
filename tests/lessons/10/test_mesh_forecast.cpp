// The expected memory and time of a run on each mesh in lesson 10.

#include <string>
#include <vector>

#include "lessons/parallel/mesh/mesh_forecast.hpp"
#include "lessons/parallel/zero/bucket_shards.hpp"
#include "tests/catch.hpp"
#include "tests/lessons/10/mesh_plans.hpp"
#include "tests/reported.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// The report of the meshes of four ranks, one of which has no forecast.
/// @param capacity  bytes of a device; 0: without limit.
Told told(std::int64_t capacity)
{
  const auto forecast = [](const Layout& l) -> std::optional<MeshForecast> {
    if (l.tp == 4) return {};
    return MeshForecast{l, 1000 * l.dp + l.pp, static_cast<double>(l.tp * 10 + l.pp)};
  };
  std::vector<MeshForecast> all;
  for (const Layout& layout : factorisations(4))
    if (const std::optional<MeshForecast> one = forecast(layout)) all.push_back(*one);
  LessonOptions options;
  options.memory_limit.value = capacity;
  return Told(
      true, [&](Report& report) { report_meshes(report, all, fastest_mesh(4, memory_limit(options), forecast)); });
}

}  // namespace

TEST_CASE("report_meshes: every mesh that is possible, and the fastest that fits")
{
  const Told all = told(0);
  const nlohmann::json& meshes = all.json["meshes"];
  REQUIRE(meshes.size() == 5);
  CHECK(meshes[0] == nlohmann::json{{"dp", 4}, {"tp", 1}, {"pp", 1}, {"bytes", 4001}, {"step_s", 11.0}});
  CHECK(meshes[4] == nlohmann::json{{"dp", 1}, {"tp", 2}, {"pp", 2}, {"bytes", 1002}, {"step_s", 22.0}});
  CHECK_THAT(all.text, Contains("meshes") && Contains("dp=2 tp=1 pp=2") && Contains("s a step; 2,002 bytes") &&
                           Contains("fastest that fits: dp=4 tp=1 pp=1") && !Contains("tp=4"));
  CHECK_THAT(told(4000).text, Contains("fastest that fits: dp=2 tp=1 pp=2"));
  CHECK_THAT(told(4001).text, Contains("fastest that fits: dp=4 tp=1 pp=1"));
  CHECK_THAT(told(1).text, Contains("no mesh fits"));
}
