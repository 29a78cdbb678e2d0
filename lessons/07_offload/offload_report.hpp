#pragma once

#include <optional>

#include "common/program/report.hpp"
#include "lessons/07_offload/offload.hpp"
#include "lessons/07_offload/tiers.hpp"

/// @file
/// What a run prints and writes of its tiers and links.

namespace rankwise {

/// Blocks "tiers" and "links" of a run that is not made: bytes of host and disk by category, and bytes of a step over each
/// link; none without bytes.
void report_tier_plan(Report& report, const TierBytes& tiers, const LinkBytes& links);

/// Block "tiers": bytes of host and disk by category beside the formula, of rank 0; a check of each on all ranks; enters
/// `tiers` in the document. Memory of the host that messages of GPUs pass through is told, and not held to a formula. All
/// ranks make this call.
/// @param measured  this rank's ledger.
/// @param formula   of this rank.
void report_tiers(Report& report, const MemoryLedger& measured, const TierBytes& formula);

/// Block "links": what went over each link in a step beside the formula, the bandwidth that was reached and the one that
/// would hide it behind the rest of the step; the seconds of a step that were exposed; a check of each link on all ranks;
/// enters `links` in the document. All ranks make this call.
/// @param steps    what this rank has counted.
/// @param formula  of this rank and one step.
/// @param alone    what the disk does by itself, if there is one.
void report_links(Report& report, const StepLinks& steps, const LinkBytes& formula,
                  const std::optional<DiskBandwidth>& alone);

}  // namespace rankwise
