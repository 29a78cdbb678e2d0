#include "lessons/parallel/pipeline/schedule_report.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/json.hpp"
#include "common/collectives/collectives.hpp"
#include "lessons/frame/replicas.hpp"

namespace rankwise {

TimedSchedule times_of_all(const std::vector<PerformedAction>& own, const PipelineSchedule& schedule, Group& line)
{
  std::vector<std::int64_t> numbers;  // times of all ranks; zero for the other ranks, so that a sum gathers them
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const std::size_t actions = schedule.actions[static_cast<std::size_t>(rank)].size();
    if (rank != line.rank())
      numbers.resize(numbers.size() + 2 * actions);
    else
      for (const PerformedAction& action : own) numbers.insert(numbers.end(), {action.begin, action.end});
  }
  constexpr auto most = static_cast<std::size_t>(loss_numbers);  // in a message, to fit a training step's scratch
  for (std::size_t first = 0; first < numbers.size(); first += most)
    all_reduce_sum(std::span(numbers).subspan(first, std::min(most, numbers.size() - first)), line);
  const auto [first, last] = std::minmax_element(numbers.begin(), numbers.end());
  TimedSchedule timed;
  timed.length = *last - *first;
  auto next = numbers.cbegin();
  for (const std::vector<Action>& actions : schedule.actions) {
    std::vector<TimedAction>& all = timed.actions.emplace_back();
    for (const Action& action : actions) {
      const std::int64_t begin = *next++ - *first, end = *next++ - *first;
      all.push_back({action, begin, end});
    }
  }
  return timed;
}

std::vector<PerformedAction> charged_actions(std::span<const VirtualSpan> spans)
{
  std::vector<PerformedAction> actions;
  for (const VirtualSpan& span : spans)
    if (span.lane == Lane::compute) actions.push_back({{}, span.begin.since_start, span.end.since_start});
  return actions;
}

namespace {

/// Times for the document, in seconds.
nlohmann::json document_of(const TimedSchedule& timed, double units_per_s)
{
  nlohmann::json ranks = nlohmann::json::array();
  for (const std::vector<TimedAction>& actions : timed.actions) {
    nlohmann::json& list = ranks.emplace_back(nlohmann::json::array());
    for (const auto& [action, begin, end] : actions)
      list.push_back({{"kind", name_of(action.kind)},
                      {"micro_batch", action.micro_batch},
                      {"stage", action.stage},
                      {"begin", static_cast<double>(begin) / units_per_s},
                      {"end", static_cast<double>(end) / units_per_s}});
  }
  return ranks;
}

}  // namespace

void report_schedule(Report& report, const PipelineSchedule& schedule, const ScheduleTimes& times,
                     double flops_per_s)
{
  constexpr int columns = 100;
  constexpr double picoseconds = 1e12, nanoseconds = 1e9;
  const auto percent = [](double share) { return fmt::format("{:.1f}", 100 * share); };
  nlohmann::json& json = report.json()["schedule"];
  json = {{"name", schedule.name},
          {"ranks", schedule.ranks},
          {"virtual_stages", schedule.virtual_stages},
          {"micro_batches", schedule.micro_batches},
          {"max_in_flight", schedule.max_in_flight}};
  std::vector<Line> lines{{"idle, equal stages", percent(check_schedule(schedule).idle_share()),
                           percent(schedule.idle_formula), "% of the ranks' time; F = B = W"}};
  json["idle"]["formula"] = schedule.idle_formula;
  std::vector<std::string> pictures;
  const auto add = [&](const char* name, const TimedSchedule& timed, double units_per_s, const std::string& note) {
    lines.push_back({fmt::format("idle, {}", name), percent(timed.idle_share()), "", note});
    pictures.push_back(fmt::format("{}, {:.3f} ms:\n{}", name,
                                   1e3 * static_cast<double>(timed.length) / units_per_s, draw(timed, columns)));
    json["idle"][name] = timed.idle_share();
    json["timelines"][name] = document_of(timed, units_per_s);
  };
  add("planned", times.planned, flops_per_s, "% with the work of this model's stages");
  if (times.on_virtual) add("virtual", *times.on_virtual, picoseconds, "% on the virtual clock, last step");
  if (times.on_wall) add("wall", *times.on_wall, nanoseconds, "% on the wall clock, last step");
  lines.push_back({"in flight", fmt::format("{}", fmt::join(times.planned.in_flight, " ")),
                   fmt::format("{}", fmt::join(schedule.max_in_flight, " ")),
                   "activations by rank, each of one micro-batch in one stage"});
  report.block("schedule", lines);
  for (const std::string& picture : pictures) report.comment(picture);
}

void report_schedule(Report& report, const PipelinePlan& plan, const std::vector<PerformedAction>& performed,
                     const std::vector<PerformedAction>& on_virtual, Run& run, Group& line)
{
  ScheduleTimes times{check_schedule(plan.schedule, plan.costs), {}, times_of_all(performed, plan.schedule, line)};
  if (run.messages.clock() != nullptr) times.on_virtual = times_of_all(on_virtual, plan.schedule, line);
  report_schedule(report, plan.schedule, times, parse_flops(run.options.messages.flops));
}

void report_schedule(Report& report, const PipelinePlan& plan, const std::vector<PerformedAction>& performed,
                     Run& run, Group& line)
{
  report_schedule(report, plan, performed, charged_actions(run.messages.last_virtual_step()), run, line);
}

void report_plan(Report& report, const PipelinePlan& plan, double flops_per_s)
{
  report.comment(describe_stages(plan));
  report_schedule(report, plan.schedule, {check_schedule(plan.schedule, plan.costs), {}, {}}, flops_per_s);
}

}  // namespace rankwise
