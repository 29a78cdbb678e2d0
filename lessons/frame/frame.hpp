#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "common/program/report.hpp"
#include "common/program/session.hpp"
#include "lessons/frame/costs.hpp"
#include "lessons/frame/options.hpp"
#include "lessons/frame/run.hpp"

/// @file
/// Checks before a run, and costs beside their formulas after it: parts of train() that do not depend on the lesson.

namespace rankwise {

/// The number of ranks N: `--ranks` of a dry run, or the ranks of the job.
/// @throws UserError  if --ranks is negative.
int ranks_of(const LessonOptions& options, const Session& session);

/// Refuses sizes that contradict each other or do not suit N ranks, and communication options that N ranks cannot
/// use.
/// @throws UserError  for the first problem.
void check_sizes(const LessonOptions& options, int N, const Division& division);

/// Refuses --html and --watch where there is nothing to show, or no terminal to draw in.
/// @throws UserError  if so; for a missing terminal on rank 0 only.
void check_output(const LessonOptions& options, const Session& session);

/// Refuses a run that does not fit into --memory-limit or into the device.
/// @param most     bytes of the rank that needs most.
/// @param suggest  returns options with which the run would fit into a given number of bytes.
/// @throws UserError  with the table of categories and the suggestion.
void check_capacity(const LessonOptions& options, const CategoryBytes& most,
                    const std::function<std::string(std::int64_t)>& suggest);

/// Refuses data and checkpoints that the run cannot use, and options that do nothing in the steps of --epochs. A dry run
/// without --data plans for data that are not there yet, unless it resumes.
/// @throws UserError  for the first problem.
void check_data(const LessonOptions& options, const OptionTable& table);

/// Check with --link: floating-point operations that the virtual clock has counted in the last step beside the formula.
/// All ranks make this call.
void report_arithmetic(Report& report, const Run& run, std::int64_t formula);

/// Blocks "memory" and "traffic" with their checks: measured beside the formula. All ranks make this call.
void report_costs(Report& report, const Run& run, const Costs& formula);

/// Checks that replicated parameters, which every rank has whole, are the same on all ranks. All ranks make this
/// call.
void report_replicated(Report& report, const Run& run, const Tensor& parameters);

}  // namespace rankwise
