#include "common/messages/watchdog/rank_view.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "common/base/text.hpp"

namespace rankwise {

namespace {

constexpr std::size_t moments = 24;     // moments shown in a line
constexpr std::size_t most_ranks = 16;  // ranks for which a small terminal has room

/// Activity of a rank: the letter of its kind, and in words.
struct Doing {
  char letter;
  std::string text;
};

/// The messages of a collective that are on their way: "sends 1,024 bytes to rank 1, receives 1,024 bytes from rank 3".
std::string messages_of(const TrackRecord& track, std::int64_t collective)
{
  std::string text;
  for (const TransferRecord& t : track.transfers)
    if (t.collective == collective)
      text += fmt::format("{} {} {} bytes {} rank {}", text.empty() ? ":" : ",", t.sends ? "sends" : "receives",
                          group_digits(t.bytes), t.sends ? "to" : "from", t.peer);
  return text;
}

Doing doing(const Records& records, const RankWait& wait)
{
  const std::vector<int> missing = wait.missing(records);
  const std::string& label = wait.call == nullptr ? wait.transfer->label : wait.call->label;
  const std::string what = fmt::format("{}{} in {}", wait.call == nullptr ? "a message" : wait.call->name,
                                       label.empty() ? "" : fmt::format(" \"{}\"", label), wait.track->group);
  if (missing.empty()) return {'>', what + messages_of(*wait.track, wait.call->number)};
  return {'.', fmt::format("waits for {}: {}, for {:.1f} s", list_of(missing), what, wait.still_s())};
}

Doing doing(const Records& records, const std::vector<RankWait>& waits, int rank)
{
  const FlightRecord& record = at(records, rank);
  if (!record.answers) return {' ', "does not answer"};
  const Doing own{'#', record.span.empty() ? record.phase : record.span.substr(0, record.span.rfind(" ("))};
  const auto wait = std::find_if(waits.begin(), waits.end(), [&](const RankWait& w) { return w.rank == rank; });
  if (wait == waits.end()) return record.mpi_calls.empty() ? own : Doing{'.', text_of(record.mpi_calls.front())};
  const Doing with_others = doing(records, *wait);
  return record.working ? Doing{'#', own.text + "; beside it " + with_others.text} : with_others;
}

}  // namespace

std::string RankView::draw(const Records& records)
{
  const std::vector<RankWait> waits = all_waits(records);
  past_.resize(records.size(), std::string(moments, ' '));
  // Lines that are too long end at the edge of the terminal (7l), so that their number is known.
  std::string picture = "\033[?7l";
  std::size_t lines = 1;
  for (; lines <= std::min(records.size(), most_ranks); ++lines) {
    const int rank = static_cast<int>(lines) - 1;
    const Doing now = doing(records, waits, rank);
    std::string& past = past_[lines - 1];
    past = past.substr(1) + now.letter;
    picture += fmt::format("\n\rrank {:<3}|{}| {}\033[K", rank, past, printable(now.text));
  }
  const std::size_t more = records.size() - (lines - 1);
  picture += fmt::format("\n\r# computes   > sends and receives   . waits{}\033[J\033[?7h\033[{}A\r",
                         more > 0 ? fmt::format("   ({} more ranks)", more) : "", lines);
  return picture;
}

}  // namespace rankwise
