#include "lessons/parallel/mesh/mesh_forecast.hpp"

#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "lessons/frame/plan.hpp"
#include "lessons/parallel/mesh/mesh_costs.hpp"
#include "lessons/parallel/pipeline/schedule_report.hpp"

namespace rankwise {

std::optional<MeshForecast> fastest_mesh(int ranks, std::int64_t capacity,
                                         const std::function<std::optional<MeshForecast>(const Layout&)>& forecast)
{
  std::optional<MeshForecast> best;
  // BEGIN EXERCISE 10.4
  for (const Layout& layout : factorisations(ranks)) {
    const std::optional<MeshForecast> one = forecast(layout);
    if (!one || one->bytes > capacity) continue;
    const bool better =
        !best || one->step_s < best->step_s || (one->step_s == best->step_s && one->bytes < best->bytes);
    if (better) best = one;
  }
  // END EXERCISE
  return best;
}

void report_meshes(Report& report, int ranks, std::int64_t capacity,
                   const std::function<std::optional<MeshForecast>(const Layout&)>& forecast)
{
  const auto name = [](const Layout& l) { return fmt::format("dp={} tp={} pp={}", l.dp, l.tp, l.pp); };
  std::vector<Line> lines;
  for (const Layout& layout : factorisations(ranks)) {
    const std::optional<MeshForecast> one = forecast(layout);
    if (!one) continue;
    lines.push_back(
        {name(layout), fmt::format("{:.4g}", one->step_s), "", "s a step; " + group_digits(one->bytes) + " bytes"});
    report.json()["meshes"].push_back(
        {{"dp", layout.dp}, {"tp", layout.tp}, {"pp", layout.pp}, {"bytes", one->bytes}, {"step_s", one->step_s}});
  }
  report.block("meshes", lines);
  const std::int64_t limit = capacity > 0 ? capacity : std::numeric_limits<std::int64_t>::max();
  const std::optional<MeshForecast> best = fastest_mesh(ranks, limit, forecast);
  report.comment(best ? "fastest that fits: " + name(best->layout) : "no mesh fits");
}

std::optional<MeshForecast> forecast(const MeshParallelOptions& options, const Layout& layout, int N,
                                     const MeshStepSeconds& step_seconds)
{
  MeshParallelOptions other = options;
  other.mesh.dp = static_cast<int>(layout.dp);
  other.mesh.tp = static_cast<int>(layout.tp);
  other.mesh.pp = static_cast<int>(layout.pp);
  if (layout.tp == 1) other.mesh.sequence_parallel = other.mesh.regather = false;
  try {
    check_lesson(other, N);
  } catch (const UserError&) {
    return {};
  }
  return MeshForecast{layout, largest_on_device(other, N).total(), step_seconds ? step_seconds(other, N) : 0};
}

void report_plan(Report& report, const MeshParallelOptions& options, int N, const MeshStepSeconds& step_seconds)
{
  report_plan(report, plan_of(options, {0, N}).pipeline, parse_flops(options.messages.flops));
  if (options.messages.link.empty()) return;
  if (N > most_ranks_of_all_meshes)
    report.comment(fmt::format("forecasts of all meshes are made for up to {} ranks", most_ranks_of_all_meshes));
  else
    report_meshes(report, N, options.memory_limit.value,
                  [&](const Layout& layout) { return forecast(options, layout, N, step_seconds); });
}

}  // namespace rankwise
