#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/messages/group.hpp"
#include "common/messages/layers/virtual_clock.hpp"
#include "common/program/report.hpp"
#include "lessons/09_pipeline_parallel/pipeline.hpp"
#include "lessons/09_pipeline_parallel/pipeline_plan.hpp"
#include "lessons/09_pipeline_parallel/schedule_check.hpp"
#include "lessons/frame/run.hpp"

/// @file
/// Report of a schedule, as planned and as it ran.

namespace rankwise {

/// The times of all ranks' actions in the last step. All ranks of the line make this call.
/// @param own  this rank's list, in order.
/// @return  in nanoseconds since the first action of any rank began.
TimedSchedule wall_times(const std::vector<PerformedAction>& own, const PipelineSchedule& schedule, Group& line);
/// The same on the virtual clock, whose compute lane has one span for each action.
/// @return  in picoseconds since the first action of any rank began.
TimedSchedule virtual_times(std::span<const VirtualSpan> spans, const PipelineSchedule& schedule, Group& line);

/// The times of a schedule, by up to three clocks.
struct ScheduleTimes {
  TimedSchedule planned;                    ///< in floating-point operations of this model's stages
  std::optional<TimedSchedule> on_virtual;  ///< if there is a virtual clock
  std::optional<TimedSchedule> on_wall;     ///< after a run
};

/// The times of the last step by all clocks. All ranks of the line make this call.
/// @param planned  from check_schedule().
/// @param own      this rank's performed actions, in order.
/// @param clock    the virtual clock, or null.
/// @param spans    this rank's spans on that clock.
ScheduleTimes schedule_times(const TimedSchedule& planned, const std::vector<PerformedAction>& own,
                             const VirtualClock* clock, std::span<const VirtualSpan> spans,
                             const PipelineSchedule& schedule, Group& line);

/// Block "schedule": the idle share of the p ranks by formula (equal stages, F = B = W), as planned, and as it ran;
/// the times drawn as text; enters `schedule` in the document.
/// @param flops_per_s  of a rank, to convert planned times into seconds.
void report_schedule(Report& report, const PipelineSchedule& schedule, const ScheduleTimes& times,
                     double flops_per_s);

/// The same for a run. All ranks of the line make this call.
/// @param performed  this rank's actions in the last step, in order.
void report_schedule(Report& report, const PipelinePlan& plan, const std::vector<PerformedAction>& performed,
                     Run& run, Group& line);

/// Prints in a dry run the stages and the planned schedule.
/// @param flops_per_s  of a rank.
void report_plan(Report& report, const PipelinePlan& plan, double flops_per_s);
/// The same for a run of lesson 09 on N ranks.
void report_plan(Report& report, const PipelineParallelOptions& options, int N);

}  // namespace rankwise
