#pragma once

#include <string>

#include "common/memory/memory_ledger.hpp"
#include "common/messages/layers/traffic_ledger.hpp"
#include "common/program/report.hpp"
#include "common/program/session.hpp"

/// @file
/// What every program prints and writes in the same way of its ranks and their memory.

namespace rankwise {

/// Prints which lesson runs on how many ranks, and enters both in the document.
/// @param ranks  N.
void begin_job(Report& report, const std::string& lesson, int ranks);

/// Block "memory": bytes of the device tier by category, current = formula and peak, those of the rank with the largest
/// peak; a check of each category on all ranks; enters `memory` and `memory_ranks` in the document. All ranks make this
/// call.
/// @param report    where to.
/// @param session   the ranks.
/// @param measured  this rank's ledger at the end of a step.
/// @param formula   what the paper says, of this rank.
/// @param most      by formula, of this rank within a step; a check of each category of which more is needed than is there at
///                  its end.
void report_memory(Report& report, const Session& session, const MemoryLedger& measured,
                   const CategoryBytes& formula, const CategoryBytes& most);

/// Block "traffic": what rank 0 sent through a group, beside the formula; a check that every rank sent what its own says;
/// enters `traffic` in the document. All ranks make this call.
/// @param report    where to.
/// @param group     name of the group.
/// @param what      was sent, as "a step".
/// @param measured  by this rank.
/// @param expected  of this rank.
/// @param formula   in letters, for people.
void report_traffic(Report& report, const std::string& group, const std::string& what, const Traffic& measured,
                    const Traffic& expected, const std::string& formula);

/// Whether something holds on all ranks, which make this call together.
bool on_all_ranks(bool holds);

}  // namespace rankwise
