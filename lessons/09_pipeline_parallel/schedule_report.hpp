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
/// A schedule as it was planned and as it ran.

namespace rankwise {

/// The times of all ranks' actions in the last step. All ranks of the line make this call.
/// @param own  this rank's list, in order.
/// @return  in nanoseconds from the first begin of all.
TimedSchedule wall_times(const std::vector<PerformedAction>& own, const PipelineSchedule& schedule, Group& line);
/// The same on the virtual clock, whose compute lane has one span for each action.
/// @return  in picoseconds from the first begin of all.
TimedSchedule virtual_times(std::span<const VirtualSpan> spans, const PipelineSchedule& schedule, Group& line);

/// What is known of a schedule's times.
struct ScheduleTimes {
  TimedSchedule planned;                    ///< in floating-point operations of this model's stages
  std::optional<TimedSchedule> on_virtual;  ///< with a virtual clock
  std::optional<TimedSchedule> on_wall;     ///< when it has run
};

/// All of them of the last step. All ranks of the line make this call.
/// @param planned  of check_schedule().
/// @param own      what this rank performed, in order.
/// @param clock    of the virtual time; null without one.
/// @param spans    this rank's on that clock.
ScheduleTimes schedule_times(const TimedSchedule& planned, const std::vector<PerformedAction>& own,
                             const VirtualClock* clock, std::span<const VirtualSpan> spans,
                             const PipelineSchedule& schedule, Group& line);

/// Block "schedule": the idle share of the p ranks by formula (stages that are equal, F = B = W), as planned, and as it ran; the
/// times drawn as text; enters `schedule` in the document.
/// @param flops_per_s  of a rank, which makes seconds of what is planned.
void report_schedule(Report& report, const PipelineSchedule& schedule, const ScheduleTimes& times,
                     double flops_per_s);

/// The same of a run. All ranks of the line make this call.
/// @param performed  by this rank in the last step, in order.
void report_schedule(Report& report, const PipelinePlan& plan, const std::vector<PerformedAction>& performed,
                     Run& run, Group& line);

/// What a dry run prints of lesson 09 beside its costs: the stages, and the schedule as it is planned.
void report_plan(Report& report, const PipelineParallelOptions& options, int N);

}  // namespace rankwise
