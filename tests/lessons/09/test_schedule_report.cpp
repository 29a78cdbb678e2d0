// A schedule of lesson 09 as planned and as it ran: the times of all ranks, and their report.

#include <string>
#include <vector>

#include "lessons/parallel/pipeline/schedule_report.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"
#include "tests/lessons/09/in_halves.hpp"
#include "tests/reported.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// A schedule of the ranks of this test, with as many actions on each: more than fit into one message.
PipelineSchedule long_schedule()
{
  return gpipe(world().ranks(), 300);
}

/// When an action of a rank began, in made-up units from a moment long ago.
std::int64_t begin_of(int rank, std::size_t number)
{
  return 1'000'000'000'000 + 1000 * static_cast<std::int64_t>(number) + 7 * rank;
}

/// Whether the times of all ranks are those of begin_of(), each action taking 500, counted from the first begin.
void check_times(const TimedSchedule& timed, const PipelineSchedule& schedule)
{
  REQUIRE(timed.actions.size() == schedule.actions.size());
  for (std::size_t rank = 0; rank < timed.actions.size(); ++rank) {
    REQUIRE(timed.actions[rank].size() == schedule.actions[rank].size());
    for (std::size_t i = 0; i < timed.actions[rank].size(); ++i) {
      const TimedAction& action = timed.actions[rank][i];
      CHECK(action.action == schedule.actions[rank][i]);
      CHECK(action.begin == begin_of(static_cast<int>(rank), i) - begin_of(0, 0));
      CHECK(action.end == action.begin + 500);
    }
  }
  CHECK(timed.length == 1000 * 599 + 500 + 7 * (world().ranks() - 1));
}

/// The report of a schedule at 1 GFLOP/s.
Told told(const PipelineSchedule& schedule, const ScheduleTimes& times)
{
  return Told(true, [&](Report& report) { report_schedule(report, schedule, times, 1e9); });
}

}  // namespace

TEST_CASE("times_of_all: every rank has the times of all ranks, from the first begin of all")
{
  GroupForTest test(Algorithm::ring);
  const PipelineSchedule schedule = long_schedule();
  std::vector<PerformedAction> own;
  for (const Action& action : schedule.actions[static_cast<std::size_t>(world().rank())]) {
    const std::int64_t begin = begin_of(world().rank(), own.size());
    own.push_back({action, begin, begin + 500});
  }
  check_times(times_of_all(own, schedule, test.group), schedule);
}

TEST_CASE("charged_actions: the spans of the compute lane, and of no other")
{
  GroupForTest test(Algorithm::ring);
  const PipelineSchedule schedule = long_schedule();
  std::vector<VirtualSpan> spans;
  for (std::size_t i = 0; i < schedule.actions[0].size(); ++i) {
    const std::int64_t begin = begin_of(world().rank(), i);
    if (i % 3 == 0) spans.push_back({"sum", Lane::communication, {begin - 200}, {begin + 90}});
    spans.push_back({"forward", Lane::compute, {begin}, {begin + 500}});
  }
  check_times(times_of_all(charged_actions(spans), schedule, test.group), schedule);
}

TEST_CASE("times_of_all: where links are fast a step takes what was planned, and an idle rank is idle for as long")
{
  const int p = world().ranks();
  const ActionCosts costs{2000, 3000, 1000, 500};  // flops; 1 ps each at 1 TFLOP/s; a message takes 1 ps too
  for (const int v : {1, 2}) {
    if (v > 1 && p == 1) continue;
    for (const PipelineSchedule& schedule :
         {interleaved(p, v, 2 * p), v > 1 ? interleaved(p, v, p) : in_halves(one_forward_one_backward(p, 2 * p))}) {
      INFO(schedule.name << ", v = " << v);
      GroupForTest test(Algorithm::ring);
      VirtualClock clock(parse_link("0us,16TB/s"), parse_flops("1TFLOP/s"));
      GroupSetup setup = test.setup;
      setup.clock = &clock;
      TimeLedger time;
      Pipeline pipeline(test.group, v, setup, DType::f32, {2, 2}, time);
      pipeline.run(schedule, [&](const Action& action, const Tensor&, const Tensor&) {
        clock.charge_compute(costs.of(action.kind));
      });
      const TimedSchedule planned = check_schedule(schedule, costs);
      const TimedSchedule timed = times_of_all(charged_actions(clock.spans()), schedule, test.group);
      const auto close = [&](std::int64_t ran, std::int64_t as_planned) {
        return ran >= as_planned && ran <= as_planned + 2 * schedule.stages() * schedule.micro_batches;
      };
      CHECK(close(timed.length, planned.length));
      CHECK(timed.idle_share() == Approx(planned.idle_share()).margin(0.005));
      for (std::size_t rank = 0; rank < timed.actions.size(); ++rank)
        for (std::size_t i = 0; i < timed.actions[rank].size(); ++i)
          CHECK(close(timed.actions[rank][i].begin, planned.actions[rank][i].begin));
    }
  }
}

TEST_CASE("report_schedule: idle shares beside the formula, as planned and as it ran, and pictures of them")
{
  const PipelineSchedule schedule = interleaved(4, 1, 8);
  const TimedSchedule planned = check_schedule(schedule, ActionCosts{1'000'000, 1'000'000, 1'000'000, 0});
  TimedSchedule wall = planned;  // twice as long, and idle in the second half
  wall.length *= 2;
  const Told all = told(schedule, {planned, planned, wall});
  const nlohmann::json& json = all.json["schedule"];
  CHECK_THAT(all.text, Contains("idle, equal stages") && Contains("27.3"));
  CHECK_THAT(all.text, Contains("idle, wall") && Contains("63.6"));
  CHECK_THAT(all.text, Contains("4 3 2 1"));
  CHECK_THAT(all.text, Contains("# planned, 33.000 ms:") && Contains("rank  3 |"));
  CHECK(json["name"] == "interleaved");
  CHECK(json["ranks"] == 4);
  CHECK(json["virtual_stages"] == 1);
  CHECK(json["micro_batches"] == 8);
  CHECK(json["max_in_flight"] == std::vector<int>{4, 3, 2, 1});
  CHECK(json["idle"]["formula"].get<double>() == Approx(3.0 / 11));
  CHECK(json["idle"]["planned"].get<double>() == Approx(3.0 / 11));
  CHECK(json["idle"]["virtual"].get<double>() == Approx(3.0 / 11));
  CHECK(json["idle"]["wall"].get<double>() == Approx(7.0 / 11));
  const nlohmann::json& last = json["timelines"]["planned"][0].back();  // at 1 GFLOP/s
  CHECK(last["kind"] == "backward");
  CHECK(last["micro_batch"] == 7);
  CHECK(last["stage"] == 0);
  CHECK(last["begin"].get<double>() == Approx(0.031));
  CHECK(last["end"].get<double>() == Approx(0.033));
  CHECK(json["timelines"]["virtual"][0].back()["end"].get<double>() == Approx(33e-6));
  CHECK(json["timelines"]["wall"][0].back()["end"].get<double>() == Approx(33e-3));
}

TEST_CASE("report_schedule: omits clocks that have no times")
{
  const PipelineSchedule schedule = in_halves(one_forward_one_backward(2, 4));
  const Told all = told(schedule, {check_schedule(schedule), {}, {}});
  CHECK(all.json["schedule"]["idle"].size() == 2);
  CHECK_THAT(all.text, !Contains("wall") && !Contains("virtual"));
}
