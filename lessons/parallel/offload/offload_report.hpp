#pragma once

#include <optional>

#include "common/program/report.hpp"
#include "lessons/parallel/offload/offload.hpp"
#include "lessons/parallel/offload/tiers.hpp"

/// @file
/// Reports of the bytes in tiers and over links.

namespace rankwise {

/// Blocks "tiers" and "links" of a dry run: bytes of host and disk by category, and bytes per step over each link.
/// Lines without bytes are omitted.
void report_tier_plan(Report& report, const TierBytes& tiers, const LinkBytes& links);

/// Block "tiers": bytes of host and disk by category, of rank 0, beside their formula; a check of each on all
/// ranks; and `tiers` in the JSON document. Host memory that stages messages of GPUs is reported without a formula.
/// All ranks make this call.
/// @param measured  this rank's ledger.
/// @param formula   of this rank.
void report_tiers(Report& report, const MemoryLedger& measured, const TierBytes& formula);

/// Block "links": bytes over each link per step beside their formula, the bandwidth reached, and the bandwidth that
/// would hide the bytes behind the rest of the step; the exposed seconds of a step; a check of each link on all
/// ranks; and `links` in the JSON document. All ranks make this call.
/// @param use      counted by this rank.
/// @param formula  bytes of this rank in one step.
/// @param disk_GBps  bandwidth of the disk by itself, if there is a disk.
void report_links(Report& report, const LinkUse& use, const LinkBytes& formula, std::optional<double> disk_GBps);

}  // namespace rankwise
