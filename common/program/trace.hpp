#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/memory/memory_ledger.hpp"
#include "common/program/session.hpp"
#include "common/program/time_ledger.hpp"

/// @file
/// Timeline of all ranks, as a file for a trace viewer.

namespace rankwise {

/// Writes one file with the events of all ranks in Chrome's trace format; all ranks make this call.
///
/// Each rank is a process and each kind of work one of its lanes (`pid` = rank, `tid` = kind). Above the lanes the
/// counter "memory" shows the bytes on its device tier, with a series for each category that is used. Times are in
/// microseconds since the earliest event. Open the file in https://ui.perfetto.dev or chrome://tracing, or draw a
/// step with scripts/plot/plot_memory.py. Rank 0 gathers the events of all ranks and writes them (write_file).
///
/// @param session  the ranks.
/// @param path     the file; an existing one is replaced.
/// @param events   this rank's events, from one ledger or several.
/// @param memory   the ledger whose events are shown, if it has any.
/// @failure  Error when the file cannot be written.
/// @source   "Trace Event Format", Google 2016: complete events "X", counter events "C" and metadata events "M".
void write_trace(const Session& session, const std::string& path, std::span<const TraceEvent> events,
                 const MemoryLedger& memory);

}  // namespace rankwise
