#pragma once

#include <cstdint>
#include <string>

#include "common/program/report.hpp"
#include "lessons/06_zero3/costs.hpp"
#include "lessons/07_offload/options.hpp"

/// @file
/// What the lesson needs and sends, from the sizes alone.

namespace rankwise {

/// What lies where on rank r of N, and what comes and goes.
OffloadPlan offload_plan(const ZeroOffloadOptions& options, RankOf rank);

/// Memory of every tier, and traffic, of rank r of N.
///
///     device   the units that are gathered, and 16 P / N bytes less what is offloaded
///     below    what is offloaded, and capacity for the blocks on their way
///     sent     as in lesson 06
Costs costs(const ZeroOffloadOptions& options, RankOf rank);

/// Options with which the run would fit into @p bytes, as a sentence: what of it leaves the device, and what is there at a
/// time.
std::string suggest_options(const ZeroOffloadOptions& options, int N, std::int64_t bytes);

/// Prints bytes by tier and link, the units and when they are gathered.
void report_plan(Report& report, const ZeroOffloadOptions& options, int N);

}  // namespace rankwise
