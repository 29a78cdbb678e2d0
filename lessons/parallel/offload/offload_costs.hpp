#pragma once

#include <cstdint>
#include <string>

#include "common/program/report.hpp"
#include "lessons/parallel/offload/offload_options.hpp"
#include "lessons/parallel/zero/zero3_costs.hpp"

/// @file
/// Memory and traffic of offloading, computed from the sizes alone.

namespace rankwise {

/// The state of rank r of N: where it is stored, and how it moves.
OffloadPlan offload_plan(const ZeroOffloadOptions& options, RankOf rank);

/// Moves what is offloaded from the device to the tiers that store it.
/// @param costs  with all model state on the device, without what moves.
void move_to_tiers(Costs& costs, const OffloadPlan& plan);

/// Memory of every tier, and traffic, of rank r of N.
///
///     device   the units that are gathered, and 16 P / N bytes less what is offloaded
///     below    what is offloaded, and slots for the blocks that move
///     sent     as in lesson 06
Costs costs(const ZeroOffloadOptions& options, RankOf rank);

/// Options with which the run would fit into @p bytes of the device, as a sentence.
std::string suggest_options(const ZeroOffloadOptions& options, int N, std::int64_t bytes);

/// Prints bytes by tier and link, the FSDP units and when they are gathered.
void report_plan(Report& report, const ZeroOffloadOptions& options, int N);

}  // namespace rankwise
