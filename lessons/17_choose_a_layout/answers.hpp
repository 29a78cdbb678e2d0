#pragma once

#include "common/program/report.hpp"
#include "lessons/17_choose_a_layout/machine.hpp"
#include "lessons/17_choose_a_layout/options.hpp"
#include "lessons/17_choose_a_layout/plan.hpp"

/// @file
/// The answers to the five questions.

namespace rankwise {

/// Prints a plan: memory by term, the step by part, tokens per second, utilisation, and the days of a training run; enters
/// `plan` in the document.
void report_plan(Report& report, const PlannerOptions& options, const Job& job, const Machine& machine,
                 const Plan& plan);

/// The fastest layouts, with the reason why each is slower than the first; enters `layouts` in the document.
/// @throws UserError  if no layout fits, with what the smallest one needs and what would fit.
void answer_layout(Report& report, const PlannerOptions& options, const Machine& machine);
/// The largest of the models of the papers that fits, and how many layers of its shape fit.
void answer_largest_model(Report& report, const PlannerOptions& options, const Machine& machine);
/// The least number of GPUs on which the model fits, and, if --days is set, is trained in time.
void answer_fewest_gpus(Report& report, const PlannerOptions& options, const Machine& machine);
/// The days of a training run, on the GPUs that are given and on fewer and more.
void answer_days(Report& report, const PlannerOptions& options, const Machine& machine);
/// The step with slower and faster networks, and the slowest one that costs at most 5 %.
void answer_bandwidth(Report& report, const PlannerOptions& options, const Machine& machine);

}  // namespace rankwise
