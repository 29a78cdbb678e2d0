#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/memory/memory_ledger.hpp"
#include "common/program/session.hpp"
#include "common/program/time_ledger.hpp"

/// @file
/// What all ranks did and when, as a file for a trace viewer.

namespace rankwise {

/// Writes one file with the events of all ranks in Chrome's trace format; all ranks make this call.
///
/// A rank is a process and a kind of work a lane of it (`pid` = rank, `tid` = kind). Above the lanes stands what its device
/// tier holds: the counter "memory", in bytes, with a series for each category that is ever used. Times are in
/// microseconds since the earliest event of all. Open it in https://ui.perfetto.dev or chrome://tracing, or let
/// scripts/plot/plot_memory.py draw a step. Rank 0 gathers the text of all ranks and writes it (write_file).
///
/// @param session  the ranks.
/// @param path     the file; what was there is replaced.
/// @param events   this rank's events, of one ledger or of several.
/// @param memory   the ledger whose events are shown; one that has none adds nothing.
/// @failure  Error when the file cannot be written.
/// @source   "Trace Event Format", Google 2016: complete events "X", counter events "C" and metadata events "M".
void write_trace(const Session& session, const std::string& path, std::span<const TraceEvent> events,
                 const MemoryLedger& memory);

}  // namespace rankwise
