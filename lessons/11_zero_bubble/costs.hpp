#pragma once

#include <cstdint>
#include <string>

#include "common/program/report.hpp"
#include "lessons/11_zero_bubble/options.hpp"
#include "lessons/frame/costs.hpp"

/// @file
/// Memory and traffic of a pipeline that defers weight gradients, from the sizes alone.

namespace rankwise {

/// Memory and traffic of rank r of p.
///
///     model state   as in lesson 09
///     activations   of a stage for p micro-batches, and for each the gradients that W needs: 9 C R a block
///     sent, pp      as in lesson 09: m B T C elements a stage boundary and direction
///     sent, tied    as in lesson 09: V C elements between first and last stage
Costs costs(const ZeroBubbleOptions& options, RankOf rank);

/// Floating-point operations that a rank charges to the virtual clock in a step: of all its actions.
std::int64_t charged_flops(const ZeroBubbleOptions& options, RankOf rank);

/// Options with which the run would fit into @p bytes, as a sentence.
std::string suggest_options(const ZeroBubbleOptions& options, int N, std::int64_t bytes);

/// Prints in a dry run the stages and the planned schedule.
void report_plan(Report& report, const ZeroBubbleOptions& options, int N);

}  // namespace rankwise
