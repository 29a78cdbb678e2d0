#include "common/messages/watchdog/diagnosis.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "common/messages/watchdog/wait_records.hpp"

namespace rankwise {

namespace {

/// Ranks that made the same call.
struct Side {
  const CallRecord* call;
  std::vector<int> ranks;
};

/// Groups the ranks by their calls of collective @p number of a group; ranks without a recorded call are omitted.
std::vector<Side> sides_of(const Records& records, const TrackRecord& group, std::int64_t number,
                           bool (*same)(const CallRecord&, const CallRecord&))
{
  std::vector<Side> sides;
  for (const int r : group.members) {
    const TrackRecord* track = track_of(records, r, group);
    const CallRecord* call = track != nullptr ? track->call(number) : nullptr;
    if (call == nullptr) continue;
    const auto side = std::find_if(sides.begin(), sides.end(), [&](const Side& s) { return same(*s.call, *call); });
    if (side == sides.end())
      sides.push_back({call, {r}});
    else
      side->ranks.push_back(r);
  }
  // The side with the most ranks comes first.
  std::stable_sort(sides.begin(), sides.end(),
                   [](const Side& a, const Side& b) { return a.ranks.size() > b.ranks.size(); });
  return sides;
}

/// The difference between two calls that should match.
std::string difference(const Side& most, const Side& odd)
{
  const CallRecord &a = *most.call, &b = *odd.call;
  if (a.name != b.name || a.label != b.label) {
    if (most.ranks.size() == odd.ranks.size()) return "the ranks do not make the same calls in the same order";
    return fmt::format("{} skipped a call, or made its calls in another order", list_of(odd.ranks));
  }
  std::string what = a.count != b.count ? "counts"
                     : a.type != b.type ? "types"
                     : a.root != b.root ? "roots"
                                        : "algorithms";
  return fmt::format("the {} differ{}", what, a.where == b.where ? "" : ", unless a call was skipped");
}

/// Ranks that made different calls for the same number of a group's collectives.
std::string mismatch(const Records& records, const std::vector<RankWait>& waits)
{
  for (const RankWait& wait : waits) {
    if (wait.call == nullptr) continue;
    const auto sides = sides_of(records, *wait.track, wait.call->number,
                                [](const CallRecord& a, const CallRecord& b) { return a.matches(b); });
    if (sides.size() < 2) continue;
    return fmt::format("in collective {} of {}, {} {}, but {} {}: {}", wait.call->number, wait.track->group,
                       calls(sides[1].ranks), text_of(*sides[1].call), calls(sides[0].ranks),
                       text_of(*sides[0].call), difference(sides[0], sides[1]));
  }
  return "";
}

/// A rank that returned from a collective without waiting for one of its messages.
std::string lost_message(const Records& records)
{
  for (std::size_t r = 0; r < records.size(); ++r)
    for (const TrackRecord& track : records[r].tracks)
      for (const TransferRecord& transfer : track.transfers) {
        const CallRecord* open = track.open_call();
        if (transfer.collective == 0 || (open != nullptr && open->number == transfer.collective)) continue;
        return fmt::format("rank {} left collective {} of {} without waiting for one of its messages, {}", r,
                           transfer.collective, track.group, text_of(transfer));
      }
  return "";
}

/// Weight of a rank's state as the cause that others wait for it; a larger one explains more.
int weight(const FlightRecord& record)
{
  return !record.answers ? 3 : record.finished ? 2 : 1;
}

/// A rank for which others wait, and which does not wait itself.
std::string absence(const Records& records, const std::vector<RankWait>& waits)
{
  const RankWait* found = nullptr;
  int missing = 0;
  for (const RankWait& wait : waits)
    for (const int r : wait.missing(records)) {
      if (waits_itself(waits, r)) continue;
      if (found != nullptr && weight(at(records, r)) <= weight(at(records, missing))) continue;
      found = &wait;
      missing = r;
    }
  if (found == nullptr) return "";
  const FlightRecord& record = at(records, missing);
  const std::string why = !record.answers   ? "which does not answer"
                          : record.finished ? "which has ended: it left early, or skipped a call"
                                            : "which " + place_of(record);
  if (found->call == nullptr)
    return fmt::format("rank {} waits for a message that rank {} does not {}, {}: rank {}, {}", found->rank,
                       missing, found->transfer->sends ? "receive" : "send", text_of(*found->transfer), missing,
                       why);
  return fmt::format("rank {} has not called collective {} of {}, {}, in which {} {}: rank {}, {}", missing,
                     found->call->number, found->track->group, text_of(*found->call),
                     list_of(ranks_in(waits, *found)), ranks_in(waits, *found).size() == 1 ? "waits" : "wait",
                     missing, why);
}

/// A deadlock: ranks that all wait for each other.
std::string circle(const Records& records, const std::vector<RankWait>& waits)
{
  for (const RankWait& wait : waits)
    if (wait.transfer != nullptr)
      return fmt::format("rank {} waits for a message that rank {} does not {}, {}: rank {} {}", wait.rank,
                         wait.transfer->peer, wait.transfer->sends ? "receive" : "send", text_of(*wait.transfer),
                         wait.transfer->peer, place_of(at(records, wait.transfer->peer)));
  const RankWait *most = nullptr, *odd = nullptr;
  for (const RankWait& wait : waits)
    for (const int r : wait.missing(records))
      for (const RankWait& other : waits) {
        if (other.rank != r || other.track->same_group(*wait.track)) continue;
        if (most != nullptr && ranks_in(waits, *most).size() >= ranks_in(waits, wait).size()) continue;
        most = &wait;
        odd = &other;
      }
  if (most == nullptr) return "";
  return fmt::format("{} {} of {}, but {} {} of {}: the groups differ, or the order of the calls",
                     calls(ranks_in(waits, *odd)), text_of(*odd->call), odd->track->group,
                     calls(ranks_in(waits, *most)), text_of(*most->call), most->track->group);
}

/// An asynchronous operation that was started and not waited for.
std::string forgotten_handle(const Records& records, double timeout_s)
{
  for (std::size_t r = 0; r < records.size(); ++r)
    for (const HandleRecord& handle : records[r].handles)
      if (handle.since_s >= timeout_s)
        return fmt::format("rank {} has not waited for {} ({}), which it started {:.1f} s ago", r, handle.label,
                           handle.where, handle.since_s);
  return "";
}

/// A rank that is not in MPI collective @p name, preferably one that is in no MPI call at all; negative if all
/// ranks are in it.
int missing_in(const Records& records, const std::string& name)
{
  int missing = -1;
  for (std::size_t r = 0; r < records.size(); ++r) {
    const auto& calls = records[r].mpi_calls;
    if (calls.empty()) return static_cast<int>(r);
    const bool in_it = std::any_of(calls.begin(), calls.end(), [&](const auto& call) { return call.name == name; });
    if (!in_it && missing < 0) missing = static_cast<int>(r);
  }
  return missing;
}

/// A rank in an MPI call and the rank for which it waits, preferably one that is in no MPI call at all.
std::string mpi_call(const Records& records)
{
  std::string text;
  for (std::size_t r = 0; r < records.size(); ++r)
    for (const MpiCallRecord& call : records[r].mpi_calls) {
      const int missing = call.peer >= 0 ? call.peer : missing_in(records, call.name);
      if (missing < 0 || missing == static_cast<int>(r)) continue;
      const FlightRecord& other = at(records, missing);
      if (!other.mpi_calls.empty() && !text.empty()) continue;
      text = fmt::format("rank {} is in {}, and rank {} {}", r, text_of(call), missing, place_of(other));
      if (other.mpi_calls.empty()) return text;
    }
  return text;
}

/// The cause of the deadlock.
std::string cause(const Records& records, const std::vector<RankWait>& waits, double timeout_s)
{
  const bool stuck =
      std::any_of(waits.begin(), waits.end(), [&](const RankWait& w) { return w.still_s() >= timeout_s; });
  std::string text = stuck ? "" : forgotten_handle(records, timeout_s);
  if (text.empty()) text = mismatch(records, waits);
  if (text.empty()) text = lost_message(records);
  if (text.empty()) text = absence(records, waits);
  if (text.empty()) text = circle(records, waits);
  if (text.empty()) text = forgotten_handle(records, timeout_s);
  if (text.empty() && !waits.empty() && waits.front().call != nullptr)
    text = fmt::format("all ranks are in collective {} of {}, {}, and nothing moves", waits.front().call->number,
                       waits.front().track->group, text_of(*waits.front().call));
  if (text.empty() && waits.empty()) text = mpi_call(records);
  return text.empty() ? "no rank finishes a kernel, a block of a file or a message any more" : text;
}

/// The first recorded collective that ranks called from different lines: from there on they may be out of step,
/// although the calls match.
std::string first_other_line(const Records& records, const std::vector<RankWait>& waits)
{
  for (const RankWait& wait : waits)
    for (const CallRecord& call : wait.track->last) {
      const auto sides = sides_of(records, *wait.track, call.number,
                                  [](const CallRecord& a, const CallRecord& b) { return a.where == b.where; });
      if (sides.size() < 2 || call.open()) continue;
      return fmt::format("  note: collective {} of {} was called by {} at {} and by {} at {}\n", call.number,
                         wait.track->group, list_of(sides[0].ranks), sides[0].call->where, list_of(sides[1].ranks),
                         sides[1].call->where);
    }
  return "";
}

}  // namespace

std::string diagnose(const Records& records, double timeout_s)
{
  double longest_s = 0;
  for (const FlightRecord& record : records) longest_s = std::max(longest_s, record.longest_s());
  const std::vector<RankWait> waits = all_waits(records);
  std::string text = fmt::format("watchdog: {}.\n", cause(records, waits, timeout_s));
  text += fmt::format("  Nothing has moved there for {:.1f} s (--timeout={}); the job ends with status 86.\n",
                      longest_s, timeout_s);
  text += first_other_line(records, waits);
  for (std::size_t r = 0; r < records.size(); ++r) {
    text += fmt::format("  rank {} {}\n", r, place_of(records[r]));
    for (const HandleRecord& handle : records[r].handles)
      text += fmt::format("         has not waited for {} ({}), started {:.1f} s ago\n", handle.label, handle.where,
                          handle.since_s);
  }
  text.pop_back();
  return text;
}

}  // namespace rankwise
