#pragma once

#include "common/program/report.hpp"
#include "lessons/17_choose_a_layout/machine.hpp"
#include "lessons/17_choose_a_layout/options.hpp"

/// @file
/// The answers to the five questions.

namespace rankwise {

/// Answers --question.
///
///     layout         the fastest layouts, with the reason why each is slower than the first
///     largest-model  the largest of the models of the papers that fits, and how many layers of the model's shape fit
///     fewest-gpus    the least number of GPUs on which the model fits, and, if --days is set, is trained in time
///     days           the days of a training run, on the GPUs that are given and on fewer and more
///     bandwidth      the step with slower and faster networks, and the slowest one that costs at most 5 %
///
/// Each prints a plan: memory by term, the step by part, tokens per second, utilisation, and the days of a training run. It is
/// `plan` in the document, beside what the question adds.
/// @throws UserError  if no layout fits, with what the smallest one needs and what would fit.
void answer(Report& report, const PlannerOptions& options, const Machine& machine);

}  // namespace rankwise
