#include "lessons/10_3d_parallel/mesh_forecast.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/base/text.hpp"
#include "lessons/09_pipeline_parallel/schedule_check.hpp"
#include "lessons/09_pipeline_parallel/schedule_report.hpp"
#include "lessons/10_3d_parallel/costs.hpp"
#include "lessons/frame/frame.hpp"

namespace rankwise {

namespace {

/// The links of a ring, as a message that passes around it meets them.
struct Ring {
  double latency_s = 0;        // mean over all links
  double s_per_byte = 0;       // mean
  double most_s_per_byte = 0;  // of the slowest link
};

/// The links of a ring along an axis through rank 0.
Ring ring_along(const MeshPlan& plan, const LinkOptions& links, const char* axis)
{
  const std::vector<int> ranks = plan.line(axis);
  const auto n = static_cast<double>(ranks.size());
  Ring ring;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Link& hop = links.of(ranks[i], ranks[(i + 1) % ranks.size()]);
    ring.latency_s += seconds(hop.latency) / n;
    ring.s_per_byte += 1 / hop.bandwidth_Bps / n;
    ring.most_s_per_byte = std::max(ring.most_s_per_byte, 1 / hop.bandwidth_Bps);
  }
  return ring;
}

}  // namespace

double message_seconds(const Traffic& sent, const MeshPlan& plan, const LinkOptions& links, const char* axis)
{
  // A message that passes around meets each link in turn, and the slowest link has to carry all messages of its rank.
  const Ring ring = ring_along(plan, links, axis);
  const auto messages = static_cast<double>(sent.messages), bytes = static_cast<double>(sent.bytes);
  return std::max(messages * ring.latency_s + bytes * ring.s_per_byte, bytes * ring.most_s_per_byte);
}

namespace {

/// Durations of actions in picoseconds: arithmetic and tensor-parallel messages, half of these in the forward pass.
std::vector<ActionCosts> costs_in_time(const MeshPlan& plan, const LinkOptions& link, double flops_per_s)
{
  const double messages =
      message_seconds(plan.to_parts(), plan, link, "tp") /
      static_cast<double>(plan.pipeline.schedule.micro_batches * static_cast<std::int64_t>(plan.stages().size()));
  const auto time = [&](std::int64_t flops, double share) {
    const double s = static_cast<double>(flops) / flops_per_s + share * messages;
    return std::llround(s * static_cast<double>(picoseconds_per_s));
  };
  std::vector<ActionCosts> costs;
  for (const ActionCosts& c : plan.pipeline.costs)
    costs.push_back({.forward = time(c.forward, 0.5),
                     .backward_input = time(c.backward_input, 0.5),
                     .backward_weights = time(c.backward_weights, 0),
                     .again = time(c.again, 0)});
  return costs;
}

}  // namespace

double step_seconds(const MeshPlan& plan, const LinkOptions& link, double flops_per_s)
{
  const PipelinePlan& pipeline = plan.pipeline;
  const Traffic message{.messages = 1, .bytes = bytes_of(pipeline.shape.type) * plan.rows().elements()};
  const auto boundaries = static_cast<double>(pipeline.stages.size() - 1);
  double sums = message_seconds(plan.to_other_end(), plan, link, "tied");
  for (const Replicas& along : plan.replicas)
    sums += message_seconds(plan.to_replicas(along), plan, link, along.axis.c_str());
  return seconds(check_schedule(pipeline.schedule, costs_in_time(plan, link, flops_per_s)).length) +
         2 * boundaries * message_seconds(message, plan, link, "pp") + sums;
}

std::optional<MeshForecast> fastest_mesh(int ranks, std::int64_t capacity,
                                         const std::function<std::optional<MeshForecast>(const Layout&)>& forecast)
{
  std::optional<MeshForecast> best;
  // BEGIN EXERCISE 10.4 points=10 "The fastest mesh that fits in memory: ask for the forecast of each of the "
  //     "factorisations of the ranks; some meshes have none. Among those whose bytes are at most capacity, the "
  //     "one with the smallest step_s is best; among equally fast ones the one with the fewest bytes, and among "
  //     "these the first. If none fits, best stays empty."
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
        {name(layout), fmt::format("{:.4g}", one->step_s), "", "s a step; " + format_bytes(one->bytes) + " bytes"});
    report.json()["meshes"].push_back(
        {{"dp", layout.dp}, {"tp", layout.tp}, {"pp", layout.pp}, {"bytes", one->bytes}, {"step_s", one->step_s}});
  }
  report.block("meshes", lines);
  const std::int64_t limit = capacity > 0 ? capacity : std::numeric_limits<std::int64_t>::max();
  const std::optional<MeshForecast> best = fastest_mesh(ranks, limit, forecast);
  report.comment(best ? "fastest that fits: " + name(best->layout) : "no mesh fits");
}

std::optional<MeshForecast> forecast(const MeshParallelOptions& options, const Layout& layout, int N)
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
  const CommunicationOptions& m = options.messages;
  const double step_s =
      m.link.empty() ? 0 : step_seconds(plan_of(other, {0, N}), parse_link(m.link), parse_flops(m.flops));
  const auto costs_of_rank = [&](RankOf rank) { return costs(other, rank); };
  return MeshForecast{layout, largest_on_device(costs_of_rank, N).total(), step_s};
}

void report_plan(Report& report, const MeshParallelOptions& options, int N)
{
  report_plan(report, plan_of(options, {0, N}).pipeline, parse_flops(options.messages.flops));
  if (!options.messages.link.empty())
    report_meshes(report, N, options.memory_limit.value,
                  [&](const Layout& layout) { return forecast(options, layout, N); });
}

}  // namespace rankwise
