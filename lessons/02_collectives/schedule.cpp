#include "lessons/02_collectives/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/base/error.hpp"

namespace rankwise {

// ---- Play ----

namespace {

/// One side of a message, waiting for the other side.
struct Posted {
  int rank;
  Ticket ticket;
  double time_s;
  MessageLog::Message message;
};

/// The state of the model.
class Player {
 public:
  Player(const std::vector<std::vector<MessageLog::Event>>& logs, const AlphaBeta& line)
      : logs_(logs), line_(line), ranks_(logs.size())
  {
  }

  /// Advances the ranks in turn until none can continue.
  TransferSchedule play()
  {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t r = 0; r < ranks_.size(); ++r) moved = advance(static_cast<int>(r)) || moved;
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      check(ranks_[r].next == logs_[r].size(), fmt::format("rank {} waits for a message that no rank sends", r));
      schedule_.end_s = std::max(schedule_.end_s, ranks_[r].time_s);
    }
    std::stable_sort(schedule_.messages.begin(), schedule_.messages.end(),
                     [](const auto& a, const auto& b) { return a.from < b.from; });
    return std::move(schedule_);
  }

 private:
  /// A batch of transfers in flight.
  struct Batch {
    std::size_t open = 0;  // transfers whose other side is not ready yet
    double end_s = 0;
  };
  /// State of one rank.
  struct Rank {
    std::size_t next = 0;                            // event
    double time_s = 0, sends_s = 0, receives_s = 0;  // its clock; when its two ports are free
    std::map<std::pair<std::string, Ticket>, Batch> batches;
  };

  Rank& rank(int r) { return ranks_[static_cast<std::size_t>(r)]; }

  /// Processes the events of a rank as far as possible; returns whether there were any.
  bool advance(int r)
  {
    const std::size_t before = rank(r).next;
    for (const auto& events = logs_[static_cast<std::size_t>(r)]; rank(r).next < events.size(); ++rank(r).next) {
      const MessageLog::Event& event = events[rank(r).next];
      const auto key = std::pair(event.group, event.ticket);
      if (event.starts) {
        rank(r).batches[key] = {event.messages.size(), rank(r).time_s};
        for (const auto& message : event.messages) post(event.group, {r, event.ticket, rank(r).time_s, message});
        continue;
      }
      const Batch& batch = rank(r).batches.at(key);
      if (batch.open > 0) break;
      rank(r).time_s = std::max(rank(r).time_s, batch.end_s);
    }
    return rank(r).next > before;
  }

  /// Notes that one side is ready, and transfers the message if the other side is ready too.
  void post(const std::string& group, const Posted& side)
  {
    const int from = side.message.sends ? side.rank : side.message.peer;
    const int to = side.message.sends ? side.message.peer : side.rank;
    auto& waiting = waiting_[{group, from, to}];
    if (waiting.empty() || waiting.front().message.sends == side.message.sends) {
      waiting.push_back(side);
      return;
    }
    const Posted other = waiting.front();
    waiting.pop_front();
    transfer(group, side.message.sends ? side : other, side.message.sends ? other : side);
  }

  void transfer(const std::string& group, const Posted& sender, const Posted& receiver)
  {
    Rank &from = rank(sender.rank), &to = rank(receiver.rank);
    const double start_s = std::max({sender.time_s, receiver.time_s, from.sends_s, to.receives_s});
    const double end_s = start_s + line_.time_s(sender.message.bytes);
    from.sends_s = to.receives_s = end_s;
    for (const Posted* side : {&sender, &receiver}) {
      Batch& batch = rank(side->rank).batches.at({group, side->ticket});
      --batch.open;
      batch.end_s = std::max(batch.end_s, end_s);
    }
    schedule_.messages.push_back({sender.rank, receiver.rank, sender.message.what, start_s, end_s});
  }

  const std::vector<std::vector<MessageLog::Event>>& logs_;
  AlphaBeta line_;
  std::vector<Rank> ranks_;
  std::map<std::tuple<std::string, int, int>, std::deque<Posted>> waiting_;
  TransferSchedule schedule_;
};

}  // namespace

TransferSchedule play(const std::vector<std::vector<MessageLog::Event>>& logs, const AlphaBeta& line)
{
  return Player(logs, line).play();
}

// ---- Gather ----

namespace {

nlohmann::json as_json(const std::vector<MessageLog::Event>& events)
{
  nlohmann::json all = nlohmann::json::array();
  for (const MessageLog::Event& e : events) {
    nlohmann::json messages = nlohmann::json::array();
    for (const MessageLog::Message& m : e.messages) messages.push_back({m.sends, m.peer, m.bytes, m.what});
    all.push_back({e.group, e.ticket, e.starts, messages});
  }
  return all;
}

std::vector<MessageLog::Event> from_json(const nlohmann::json& all)
{
  std::vector<MessageLog::Event> events;
  for (const auto& e : all) {
    events.push_back({e[0], e[1], e[2], {}});
    for (const auto& m : e[3]) events.back().messages.push_back({m[0], m[1], m[2], m[3]});
  }
  return events;
}

}  // namespace

std::vector<std::vector<MessageLog::Event>> gather_events(const std::vector<MessageLog::Event>& own,
                                                          const Communicator& communicator)
{
  const std::string text = as_json(own).dump();
  const int length = static_cast<int>(text.size());
  std::vector<int> lengths(static_cast<std::size_t>(communicator.ranks())), places;
  check_mpi(MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, communicator.handle()),
            "gathering what ranks have sent");
  int total = 0;
  for (const int each : lengths) {
    places.push_back(total);
    total += each;
  }
  std::string texts(static_cast<std::size_t>(total), ' ');
  check_mpi(MPI_Allgatherv(text.data(), length, MPI_CHAR, texts.data(), lengths.data(), places.data(), MPI_CHAR,
                           communicator.handle()),
            "gathering what ranks have sent");
  std::vector<std::vector<MessageLog::Event>> all;
  for (std::size_t r = 0; r < lengths.size(); ++r) {
    const auto first = texts.begin() + places[r];
    all.push_back(from_json(nlohmann::json::parse(first, first + lengths[r])));
  }
  return all;
}

// ---- Show ----

namespace {

constexpr int rank_bits = 4, marked_ranks = 8;  // 4 bits count how often a rank is in a sum
constexpr int index_bits = rank_bits * marked_ranks;

/// "0", "0,2", "0..3".
std::string list_of(const std::vector<std::int64_t>& numbers)
{
  const bool run = numbers.size() > 2 && numbers.back() - numbers.front() + 1 == std::ssize(numbers);
  return run ? fmt::format("{}..{}", numbers.front(), numbers.back()) : fmt::format("{}", fmt::join(numbers, ","));
}

}  // namespace

std::int64_t marked_shard(int shard, int rank)
{
  check(0 <= rank && rank < marked_ranks, "shards can be marked for at most 8 ranks");
  return (static_cast<std::int64_t>(shard) << index_bits) + (std::int64_t{1} << (rank_bits * rank));
}

std::string describe_shards(const Tensor& message, int ranks, bool sums)
{
  if (message.type() != DType::i64) return "";
  std::vector<std::int64_t> bucket_shards, who;
  for (const std::int64_t value : message.span<std::int64_t>()) {
    who.clear();
    for (int r = 0; r < marked_ranks; ++r)
      for (std::int64_t times = value >> (rank_bits * r) & 0xF; times > 0; --times) who.push_back(r);
    bucket_shards.push_back(who.empty() ? -1 : (value >> index_bits) / std::ssize(who));
  }
  std::string text = list_of(bucket_shards);
  if (!sums) return text;
  return text + (std::ssize(who) == ranks ? "(all)" : fmt::format("({})", fmt::join(who, "+")));
}

std::vector<Line> step_table(const TransferSchedule& schedule, int ranks)
{
  std::map<std::pair<int, int>, std::string> cells;  // by rank and step
  std::vector<std::size_t> widths;
  for (const ScheduledMessage& m : schedule.messages) {
    const int step = static_cast<int>(std::lround(m.start_s));
    std::string& cell = cells[{m.from, step}];
    cell = fmt::format("{}{}-> {}", m.what, m.what.empty() ? "" : " ", m.to);
    widths.resize(std::max(widths.size(), static_cast<std::size_t>(step) + 1), 8);
    widths[static_cast<std::size_t>(step)] = std::max(widths[static_cast<std::size_t>(step)], cell.size());
  }
  const auto row = [&](const std::string& label, auto&& cell_of) {
    std::string text;
    for (std::size_t s = 0; s < widths.size(); ++s)
      text += fmt::format("{:<{}}  ", cell_of(static_cast<int>(s)), widths[s]);
    return Line{label, "", "", text};
  };
  std::vector<Line> lines{row("", [](int step) { return fmt::format("step {}", step); })};
  for (int r = 0; r < ranks; ++r)
    lines.push_back(row(fmt::format("rank {}", r), [&](int step) { return cells[{r, step}]; }));
  return lines;
}

}  // namespace rankwise
