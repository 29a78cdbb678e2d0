#include "common/messages/watchdog/wait_records.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/text.hpp"

namespace rankwise {

namespace {

void add_waits(const FlightRecord& record, int rank, std::vector<RankWait>& waits)
{
  for (const TrackRecord& track : record.tracks) {
    if (const CallRecord* call = track.open_call()) waits.push_back({rank, &track, call, nullptr});
    for (const TransferRecord& transfer : track.transfers)
      if (transfer.waited_for && transfer.collective == 0) waits.push_back({rank, &track, nullptr, &transfer});
  }
}

/// "; its last was collective 16 of world: ..., ended 3.1 s ago", over all groups.
std::string last_call(const FlightRecord& record)
{
  const TrackRecord* track = nullptr;
  for (const TrackRecord& t : record.tracks)
    if (!t.last.empty() && (track == nullptr || t.last.back().ended_s < track->last.back().ended_s)) track = &t;
  if (track == nullptr) return "; it never called a collective";
  const CallRecord& call = track->last.back();
  return fmt::format("; its last was collective {} of {}: {}, ended {:.1f} s ago", call.number, track->group,
                     text_of(call), call.ended_s);
}

}  // namespace

double RankWait::still_s() const
{
  return call != nullptr ? call->still_s : transfer->still_s;
}

std::vector<int> RankWait::missing(const Records& records) const
{
  if (transfer != nullptr) return {transfer->peer};
  std::vector<int> ranks;
  for (const int r : track->members) {
    const TrackRecord* theirs = track_of(records, r, *track);
    if (theirs == nullptr || theirs->calls < call->number) ranks.push_back(r);
  }
  return ranks;
}

std::vector<RankWait> all_waits(const Records& records)
{
  std::vector<RankWait> waits;
  for (std::size_t r = 0; r < records.size(); ++r) add_waits(records[r], static_cast<int>(r), waits);
  return waits;
}

bool waits_itself(const std::vector<RankWait>& waits, int rank)
{
  return std::any_of(waits.begin(), waits.end(), [&](const RankWait& wait) { return wait.rank == rank; });
}

std::vector<int> ranks_in(const std::vector<RankWait>& waits, const RankWait& wait)
{
  std::vector<int> ranks;
  for (const RankWait& other : waits)
    if (other.call != nullptr && other.call->number == wait.call->number && other.track->same_group(*wait.track))
      ranks.push_back(other.rank);
  return ranks;
}

const FlightRecord& at(const Records& records, int rank)
{
  return records.at(static_cast<std::size_t>(rank));
}

const TrackRecord* track_of(const Records& records, int rank, const TrackRecord& group)
{
  for (const TrackRecord& track : at(records, rank).tracks)
    if (track.same_group(group)) return &track;
  return nullptr;
}

std::string list_of(const std::vector<int>& ranks)
{
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  return fmt::format("ranks {} and {}", fmt::join(ranks.begin(), ranks.end() - 1, ", "), ranks.back());
}

std::string calls(const std::vector<int>& ranks)
{
  return list_of(ranks) + (ranks.size() == 1 ? " calls" : " call");
}

std::string text_of(const CallRecord& call)
{
  std::string text = fmt::format("{} ({})", call.name, call.algorithm);
  if (call.count > 0) text += fmt::format(" of {} {}", group_digits(call.count), call.type);
  if (call.name == "broadcast" || call.name == "reduce") text += fmt::format(" with root {}", call.root);
  if (!call.label.empty()) text += fmt::format(" for \"{}\"", call.label);
  return fmt::format("{} ({})", text, call.where);
}

std::string text_of(const TransferRecord& transfer)
{
  return fmt::format("{} bytes {} rank {}{} ({})", group_digits(transfer.bytes), transfer.sends ? "to" : "from",
                     transfer.peer, transfer.label.empty() ? "" : fmt::format(" for \"{}\"", transfer.label),
                     transfer.where);
}

std::string text_of(const MpiCallRecord& call)
{
  const bool sends = call.name == "MPI_Send" || call.name == "MPI_Ssend";
  std::string text = call.name;
  if (call.bytes > 0) text += fmt::format(" of {} bytes", group_digits(call.bytes));
  if (call.peer >= 0) text += fmt::format(" {} rank {}", sends ? "to" : "from", call.peer);
  if (!call.where.empty()) text += ", called by " + call.where;
  return text;
}

std::string place_of(const FlightRecord& record)
{
  if (!record.answers) return "does not answer: its process is stopped, or its machine is out of reach";
  std::vector<RankWait> waits;
  add_waits(record, 0, waits);
  std::string text;
  for (const RankWait& wait : waits) {
    text += text.empty() ? "waits " : "; and ";
    if (wait.transfer != nullptr)
      text += fmt::format("for {} in {}", text_of(*wait.transfer), wait.track->group);
    else
      text += fmt::format("in collective {} of {}: {}", wait.call->number, wait.track->group, text_of(*wait.call));
    text += fmt::format(", for {:.1f} s", wait.still_s());
  }
  for (const TrackRecord& track : record.tracks)
    for (const TransferRecord& transfer : track.transfers)
      if (transfer.collective > 0 && transfer.waited_for) text += "; there for " + text_of(transfer);
  if (!waits.empty()) return text;
  const std::string doing = record.span.empty() ? "" : "; it is at " + record.span;
  if (!record.mpi_calls.empty()) {
    const MpiCallRecord& call = record.mpi_calls.front();
    return fmt::format("{}is in {}, for {:.1f} s{}", record.phase.empty() ? "" : record.phase + ": it ",
                       text_of(call), call.since_s, doing);
  }
  if (record.finished) return "has ended" + last_call(record);
  if (!record.phase.empty()) return record.phase + doing;
  return fmt::format("is in no collective{}{}", last_call(record), doing);
}

}  // namespace rankwise
