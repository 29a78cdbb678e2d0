#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/memory/memory_ledger.hpp"
#include "common/messages/layers/traffic_ledger.hpp"
#include "common/program/report.hpp"
#include "common/program/session.hpp"

/// @file
/// Report blocks that are the same in every program: ranks, memory and traffic.

namespace rankwise {

/// The revision of the sources of this program, without uncommitted changes.
std::string_view revision();

/// Prints the lesson and its number of ranks, and adds both to the JSON document; and `provenance`: date (UTC),
/// host, revision of the sources (without uncommitted changes), compiler and MPI library.
/// @param ranks  N.
void begin_job(Report& report, const std::string& lesson, int ranks);

/// Reports block "memory": device bytes by category, measured against the formula, and their peak, of the rank with
/// the largest peak. Checks each category on all ranks and adds `memory` and `memory_ranks` to the JSON document.
/// All ranks make this call.
/// @param report    the report.
/// @param session   the ranks.
/// @param measured  this rank's ledger at the end of a step.
/// @param formula   bytes of this rank at the end of a step, by formula.
/// @param most      peak bytes of this rank within a step, by formula; checked where they exceed @p formula.
void report_memory(Report& report, const Session& session, const MemoryLedger& measured,
                   const CategoryBytes& formula, const CategoryBytes& most);

/// Reports block "traffic": messages and bytes that rank 0 sent in a group, beside the formula. Checks every rank's
/// traffic against its own formula and adds `traffic` to the JSON document. All ranks make this call.
/// @param report    the report.
/// @param group     name of the group.
/// @param what      the traffic in words, as "a step".
/// @param measured  traffic of this rank.
/// @param expected  traffic of this rank, by formula.
/// @param formula   the formula in letters, for people.
void report_traffic(Report& report, const std::string& group, const std::string& what, const Traffic& measured,
                    const Traffic& expected, const std::string& formula);

/// Enters the bytes that each rank sent to each other rank along an axis in the last step as `receivers[axis][rank][rank]`. All
/// ranks make this call.
/// @param sent   bytes that this rank sent to each rank of the job; empty: none.
/// @param ranks  number of ranks.
void report_receivers(Report& report, const std::string& axis, std::vector<std::int64_t> sent, int ranks);

/// Prints how well the clocks of a trace agree, and enters it as `clocks`. Rank 0 makes this call.
/// @param clocks  AlignedClock::json() of each rank.
void report_clocks(Report& report, const nlohmann::json& clocks);

/// Logical AND of @p holds over all ranks, which make this call together.
bool on_all_ranks(bool holds);

}  // namespace rankwise
