// The expected memory and time of a run on each mesh in lesson 10.

#include <string>
#include <vector>

#include "lessons/04_zero1/bucket_shards.hpp"
#include "lessons/10_3d_parallel/mesh_forecast.hpp"
#include "tests/catch.hpp"
#include "tests/lessons/10/mesh_plans.hpp"
#include "tests/reported.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

constexpr double flops_per_s = 1e9;

/// Seconds a step of the rank 0 of a mesh.
double seconds_of(const Layout& layout, const std::string& link, double rate = flops_per_s,
                  const MeshPlanOptions& options = {})
{
  return step_seconds(mesh_plan(layout, {}, options), parse_link(link), rate);
}

/// The report of the meshes of four ranks, one of which has no forecast.
Told told(std::int64_t capacity)
{
  const auto forecast = [](const Layout& l) -> std::optional<MeshForecast> {
    if (l.tp == 4) return {};
    return MeshForecast{l, 1000 * l.dp + l.pp, static_cast<double>(l.tp * 10 + l.pp)};
  };
  return Told(true, [&](Report& report) { report_meshes(report, 4, capacity, forecast); });
}

}  // namespace

TEST_CASE("step_seconds: replicas of a whole model compute their share, then send 2 (dp-1)/dp of it")
{
  const MeshPlanOptions options{};
  const double tokens = static_cast<double>(options.passes * options.B * options.config.context);
  const double compute =
      step_flops(options.config, static_cast<std::int64_t>(tokens), options.config.context, false) / flops_per_s;
  CHECK(seconds_of({}, "1us,1GB/s") == Approx(compute).epsilon(1e-9));
  const Layout two{.dp = 2};
  const std::int64_t elements = elements_of(mesh_plan(two, {}).ranges());
  REQUIRE(elements % 4 == 0);
  // A message for the sum and one for the copy, of the token embedding and of the rest; all of a rank's elements in f32.
  const double messages = 4 * 1e-6 + 4 * static_cast<double>(elements) / 1e9;
  CHECK(seconds_of(two, "1us,1GB/s") == Approx(compute + messages).epsilon(1e-9));
}

TEST_CASE("step_seconds: two stages take their schedule, a trip there and back, and the sum of the tied embedding")
{
  const Layout two{.pp = 2};
  const MeshPlan plan = mesh_plan(two, {});
  const double on_paper = static_cast<double>(check_schedule(plan.pipeline.schedule, plan.pipeline.costs).length);
  const std::int64_t row_bytes = 4 * plan.pipeline.rows().elements(), tied_bytes = plan.to_other_end().bytes;
  const double messages =
      2 * 1e-6 + 2 * static_cast<double>(row_bytes) / 1e9 + 2 * 1e-6 + static_cast<double>(tied_bytes) / 1e9;
  CHECK(seconds_of(two, "1us,1GB/s") == Approx(on_paper / flops_per_s + messages).epsilon(1e-6));
}

TEST_CASE("step_seconds: parts compute a share of it, and wait for the messages of every pass")
{
  const Layout two{.tp = 2};
  const MeshPlan plan = mesh_plan(two, {});
  double flops = 0;
  for (const ActionCosts& c : plan.pipeline.costs)
    flops += static_cast<double>(c.forward + c.backward_input + c.backward_weights);
  const Traffic sent = plan.to_parts();
  const double messages = static_cast<double>(sent.messages) * 1e-6 + static_cast<double>(sent.bytes) / 1e9;
  const double passes = static_cast<double>(plan.pipeline.schedule.micro_batches);
  CHECK(seconds_of(two, "1us,1GB/s") == Approx(passes * flops / flops_per_s + messages).epsilon(1e-6));
}

TEST_CASE("step_seconds: slower links take longer unless there is one rank; faster ranks take less")
{
  for (const MeshCase& c : mesh_cases()) {
    INFO(describe(c));
    const auto takes = [&](const char* link, double rate) { return seconds_of(c.layout, link, rate, c.options); };
    const double usual = takes("1us,1GB/s", 1e9);
    const bool alone = c.layout.dp * c.layout.tp * c.layout.pp == 1;
    CHECK((takes("10us,1GB/s", 1e9) > usual) == !alone);
    CHECK((takes("1us,100MB/s", 1e9) > usual) == !alone);
    CHECK(takes("1us,1GB/s", 2e9) < usual);
  }
}

TEST_CASE("step_seconds: neighbours use the links inside a node, other ranks those between nodes")
{
  const std::string inside = "1us,1GB/s", slow_between = "1us,1GB/s,1ms,1MB/s,2";
  CHECK(seconds_of({.tp = 2}, slow_between) == seconds_of({.tp = 2}, inside));
  CHECK(seconds_of({.dp = 2}, slow_between) == seconds_of({.dp = 2}, inside));
  CHECK(seconds_of({.tp = 4}, slow_between) > seconds_of({.tp = 4}, inside));
  const auto more = [&](const Layout& layout) {
    return seconds_of(layout, slow_between) - seconds_of(layout, inside);
  };
  const Layout both{.dp = 2, .tp = 2};
  const Traffic sent = mesh_plan(both, {}).to_replicas();  // only these leave the node
  CHECK(more(both) ==
        Approx(static_cast<double>(sent.messages) * (1e-3 - 1e-6) + static_cast<double>(sent.bytes) * (1e-6 - 1e-9))
            .epsilon(1e-6));
}

TEST_CASE(
    "step_seconds: along an axis with different links a message takes their mean, and the narrowest carries all "
    "bytes")
{
  const Layout four{.dp = 4};  // two nodes of two: every other link of the ring is between them
  const Traffic sent = mesh_plan(four, {}).to_replicas();
  const auto messages = static_cast<double>(sent.messages), bytes = static_cast<double>(sent.bytes);
  const double usual = seconds_of(four, "1us,1GB/s");
  CHECK(seconds_of(four, "1us,1GB/s,1ms,1GB/s,2") == Approx(usual + messages * (1e-3 - 1e-6) / 2).epsilon(1e-9));
  const double narrow = usual - messages * 1e-6 - bytes * 1e-9 + bytes * 1e-6;
  CHECK(seconds_of(four, "1us,1GB/s,1us,1MB/s,2") == Approx(narrow).epsilon(1e-9));
}

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
