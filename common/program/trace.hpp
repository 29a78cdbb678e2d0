#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/memory/memory_ledger.hpp"
#include "common/program/clock_offset.hpp"
#include "common/program/session.hpp"
#include "common/program/time_ledger.hpp"

/// @file
/// Timeline of all ranks, as a file for a trace viewer.

namespace rankwise {

/// A message as a trace shows it: an event of its sender, and one of its receiver.
struct MessageEvent {
  bool sends;              ///< true if it leaves this rank; else it has arrived
  int peer;                ///< the other rank, as its rank in the job
  std::int64_t number;     ///< number of the message from sender to receiver in this group, counted on both sides
  std::int64_t bytes;      ///< size of the message
  std::string group;       ///< name of the group
  std::string collective;  ///< "all-reduce"; "send" outside of any
  std::int64_t call;       ///< number of the collective in its group, from 1; 0 outside of any
  std::string purpose;     ///< label of the collective, else the innermost span of the thread
  std::int64_t all_bytes;  ///< bytes of the tensor that the collective is about, or of the message
  bool counted;            ///< true if it counts as traffic of a step (TrafficLedger::count_axis)
  Work lane;               ///< innermost span of the thread
  SourceLocation where;    ///< line of the collective, or of the message
  EventTime time;          ///< time at which the sender started it, or the receiver finished it
};

/// Writes one file with the events of all ranks in Chrome's trace format; all ranks make this call.
///
/// Each rank is a process and each kind of work one of its lanes (`pid` = rank, `tid` = kind). Above the lanes the
/// counter "memory" shows the bytes on its device tier, with a series for each category that is used. An arrow leads
/// from the span that starts a message to the one that receives it. Times are in microseconds since the earliest event, on
/// rank 0's clock (AlignedClock); `otherData` has the offset and drift of each rank's.
/// Each event has the time of the virtual clock too, in picoseconds, `ps` and `dur_ps`; viewers ignore these. Open the file in https://ui.perfetto.dev or chrome://tracing, or draw a
/// step with scripts/plot/plot_memory.py. Rank 0 gathers the events of all ranks and writes them (write_file).
///
/// @param session  the ranks.
/// @param path     the file; an existing one is replaced.
/// @param events   this rank's events, from one ledger or several.
/// @param memory   the ledger whose events are shown, if it has any.
/// @param messages this rank's messages, sent and received.
/// @param clock    offset of its clock from rank 0's at the start of the run, if measured; it is measured again
///                 here.
/// @return  on rank 0, AlignedClock::json() of each rank.
/// @failure  Error when the file cannot be written.
/// @source   "Trace Event Format", Google 2016: complete events "X", counter events "C", flow events "s" and "f", and
///           metadata events "M".
nlohmann::json write_trace(const Session& session, const std::string& path, std::span<const TraceEvent> events,
                           const MemoryLedger& memory, std::span<const MessageEvent> messages = {},
                           const std::optional<ClockOffset>& clock = {});

}  // namespace rankwise
