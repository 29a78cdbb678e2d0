#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/messages/group.hpp"
#include "common/messages/layers/link_options.hpp"
#include "common/messages/layers/virtual_clock.hpp"
#include "common/program/report.hpp"
#include "lessons/frame/run.hpp"
#include "lessons/parallel/pipeline/pipeline.hpp"
#include "lessons/parallel/pipeline/pipeline_plan.hpp"
#include "lessons/parallel/pipeline/schedule_check.hpp"

/// @file
/// Report of a schedule, as planned and as it ran.

namespace rankwise {

/// The times of all ranks' actions in the last step, counted from the first start on any rank. All ranks of the line
/// make this call.
/// @param own  this rank's actions in order, with their times, in any unit.
TimedSchedule times_of_all(const std::vector<PerformedAction>& own, const PipelineSchedule& schedule, Group& line);
/// The spans of the compute lane, one for each action, as times of actions in picoseconds.
std::vector<PerformedAction> charged_actions(std::span<const VirtualSpan> spans);

/// The times of a schedule, by up to three clocks.
struct ScheduleTimes {
  TimedSchedule planned;                    ///< in floating-point operations of this model's stages
  std::optional<TimedSchedule> on_virtual;  ///< if there is a virtual clock
  std::optional<TimedSchedule> on_wall;     ///< after a run
};

/// Block "schedule": the idle share of the p ranks by formula (equal stages, F = B = W), as planned, and as it ran;
/// the times drawn as text; enters `schedule` in the document.
/// @param flops_per_s  of a rank, to convert planned times into seconds.
void report_schedule(Report& report, const PipelineSchedule& schedule, const ScheduleTimes& times,
                     double flops_per_s);

/// The same for a run. All ranks of the line make this call.
/// @param performed   this rank's actions in the last step, in order.
/// @param on_virtual  the same with their times on the virtual clock, if there is one.
void report_schedule(Report& report, const PipelinePlan& plan, const std::vector<PerformedAction>& performed,
                     const std::vector<PerformedAction>& on_virtual, Run& run, Group& line);
/// The same for a run in which each action is one span of the virtual clock.
void report_schedule(Report& report, const PipelinePlan& plan, const std::vector<PerformedAction>& performed,
                     Run& run, Group& line);

/// Prints in a dry run the stages and the planned schedule.
/// @param flops_per_s  of a rank.
void report_plan(Report& report, const PipelinePlan& plan, double flops_per_s);
/// The same for a pipeline of N ranks.
template <std::derived_from<PipelineParallelOptions> Options>
void report_plan(Report& report, const Options& options, int N)
{
  report_plan(report, plan_of(options, N), parse_flops(options.messages.flops));
}

}  // namespace rankwise
