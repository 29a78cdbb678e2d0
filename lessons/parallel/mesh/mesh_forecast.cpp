#include "lessons/parallel/mesh/mesh_forecast.hpp"

#include <limits>

#include <fmt/format.h>

#include "common/base/json.hpp"
#include "common/base/text.hpp"
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

std::int64_t memory_limit(const LessonOptions& options)
{
  return options.memory_limit.value > 0 ? options.memory_limit.value : std::numeric_limits<std::int64_t>::max();
}

std::string describe(const MeshForecast& mesh)
{
  return describe(mesh.layout, mesh.cp, mesh.ep);
}

void report_meshes(Report& report, const std::vector<MeshForecast>& all, const std::optional<MeshForecast>& fastest)
{
  std::vector<Line> lines;
  for (const MeshForecast& mesh : all) {
    lines.push_back({describe(mesh), fmt::format("{:.4g}", mesh.step_s), "",
                     "s a step; " + group_digits(mesh.bytes) + " bytes"});
    nlohmann::json entry = {{"dp", mesh.layout.dp},
                            {"tp", mesh.layout.tp},
                            {"pp", mesh.layout.pp},
                            {"bytes", mesh.bytes},
                            {"step_s", mesh.step_s}};
    if (mesh.cp > 0) entry.update({{"cp", mesh.cp}, {"ep", mesh.ep}});
    report.json()["meshes"].push_back(entry);
  }
  report.block("meshes", lines);
  report.comment(fastest ? "fastest that fits: " + describe(*fastest) : "no mesh fits");
}

std::optional<MeshForecast> forecast(const MeshParallelOptions& options, const Layout& layout, int N,
                                     const StepSeconds<MeshParallelOptions>& step_seconds)
{
  MeshParallelOptions other = options;
  other.mesh = options.mesh.with(layout);
  return forecast_with({.layout = layout}, other, N, step_seconds);
}

void report_plan(Report& report, const MeshParallelOptions& options, int N,
                 const StepSeconds<MeshParallelOptions>& step_seconds)
{
  report_plan(report, plan_of(options, {0, N}).pipeline, parse_flops(options.messages.flops));
  if (options.messages.link.empty()) return;
  if (N > most_ranks_of_all_meshes)
    return report.comment(
        fmt::format("forecasts of all meshes are made for up to {} ranks", most_ranks_of_all_meshes));
  const auto forecast_of = [&](const Layout& layout) { return forecast(options, layout, N, step_seconds); };
  std::vector<MeshForecast> all;
  for (const Layout& layout : factorisations(N))
    if (const std::optional<MeshForecast> one = forecast_of(layout)) all.push_back(*one);
  report_meshes(report, all, fastest_mesh(N, memory_limit(options), forecast_of));
}

}  // namespace rankwise
