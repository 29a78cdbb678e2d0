#include "lessons/02_collectives/schedule.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <map>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/error.hpp"
#include "common/base/json.hpp"
#include "common/messages/agreement.hpp"

namespace rankwise {

// ---- Play ----

namespace {

using Message = MessageLog::Message;
using LogEvent = MessageLog::Event;

/// Transfers that a rank has started together.
struct Batch {
  int rank = 0;
  double start_s = 0, end_s = 0;  // when they were started; when the last one made so far has arrived
  std::size_t open = 0;           // transfers whose other side is not ready yet
};

/// One side of a message, waiting for the other side.
struct Posted {
  const Message* message;
  Batch* batch;
};

/// The state of the model.
class Player {
 public:
  Player(const std::vector<std::vector<LogEvent>>& logs, const AlphaBeta& line)
      : logs_(logs), line_(line), ranks_(logs.size())
  {
  }

  /// Advances the ranks in turn until none can continue.
  TransferSchedule play()
  {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t r = 0; r < ranks_.size(); ++r) moved = advance(r) || moved;
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      check(ranks_[r].next == logs_[r].size(), fmt::format("rank {} waits for a message that no rank sends", r));
      schedule_.end_s = std::max(schedule_.end_s, ranks_[r].time_s);
    }
    std::ranges::stable_sort(schedule_.messages, {}, &ScheduledMessage::from);
    return std::move(schedule_);
  }

 private:
  /// State of one rank.
  struct Rank {
    std::size_t next = 0;                            // event
    double time_s = 0, sends_s = 0, receives_s = 0;  // its clock; when its two ports are free
    std::map<std::pair<std::string, Ticket>, Batch> batches;
  };

  /// Processes the events of a rank as far as possible; returns whether there were any.
  bool advance(std::size_t r)
  {
    Rank& rank = ranks_[r];
    const std::size_t before = rank.next;
    for (; rank.next < logs_[r].size(); ++rank.next) {
      const LogEvent& event = logs_[r][rank.next];
      Batch& batch = rank.batches[{event.group, event.ticket}];
      if (event.starts) {
        batch = {static_cast<int>(r), rank.time_s, rank.time_s, event.messages.size()};
        for (const Message& message : event.messages) post(event.group, {&message, &batch});
      } else if (batch.open == 0) {
        rank.time_s = std::max(rank.time_s, batch.end_s);
      } else {
        break;
      }
    }
    return rank.next > before;
  }

  /// Notes that one side is ready, and transfers the message if the other side is ready too.
  void post(const std::string& group, const Posted& side)
  {
    const bool sends = side.message->sends;
    const int from = sends ? side.batch->rank : side.message->peer;
    const int to = sends ? side.message->peer : side.batch->rank;
    auto& waiting = waiting_[{group, from, to}];
    if (waiting.empty() || waiting.front().message->sends == sends) {
      waiting.push_back(side);
      return;
    }
    const Posted other = waiting.front();
    waiting.pop_front();
    double &port_out = ranks_[static_cast<std::size_t>(from)].sends_s,
           &port_in = ranks_[static_cast<std::size_t>(to)].receives_s;
    const Message& sent = sends ? *side.message : *other.message;
    const double start_s = std::max({side.batch->start_s, other.batch->start_s, port_out, port_in});
    port_out = port_in = start_s + line_.time_s(sent.bytes);
    for (Batch* batch : {side.batch, other.batch}) {
      --batch->open;
      batch->end_s = std::max(batch->end_s, port_in);
    }
    schedule_.messages.push_back({from, to, sent.what, start_s});
  }

  const std::vector<std::vector<LogEvent>>& logs_;
  AlphaBeta line_;
  std::vector<Rank> ranks_;
  std::map<std::tuple<std::string, int, int>, std::deque<Posted>> waiting_;
  TransferSchedule schedule_;
};

}  // namespace

TransferSchedule play(const std::vector<std::vector<LogEvent>>& logs, const AlphaBeta& line)
{
  return Player(logs, line).play();
}

// ---- Gather ----

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MessageLog::Message, sends, peer, bytes, what)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MessageLog::Event, group, ticket, starts, messages)

std::vector<std::vector<LogEvent>> gather_events(const std::vector<LogEvent>& own, const Communicator& communicator)
{
  std::vector<std::vector<LogEvent>> all;
  for (const std::string& text : gather_texts(communicator, json_text(own)))
    all.push_back(parse_json(text).get<std::vector<LogEvent>>());
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

std::string describe_blocks(const Tensor& message)
{
  std::vector<std::string> blocks;
  for (const std::int64_t value : message.span<std::int64_t>()) {
    const int from = std::countr_zero(static_cast<std::uint64_t>(value)) / rank_bits;
    const std::string block = fmt::format("{}{}", from, value >> index_bits);
    if (blocks.empty() || blocks.back() != block) blocks.push_back(block);
  }
  return fmt::format("{}", fmt::join(blocks, ","));
}

std::vector<Line> step_table(const TransferSchedule& schedule, int ranks)
{
  std::vector<std::vector<std::string>> columns;  // by step: its name, and what each rank sends
  for (const ScheduledMessage& m : schedule.messages) {
    const auto step = static_cast<std::size_t>(std::lround(m.start_s));
    while (columns.size() <= step) {
      columns.emplace_back(static_cast<std::size_t>(ranks) + 1);
      columns.back()[0] = fmt::format("step {}", columns.size() - 1);
    }
    columns[step][static_cast<std::size_t>(m.from) + 1] =
        fmt::format("{}{}-> {}", m.what, m.what.empty() ? "" : " ", m.to);
  }
  std::vector<Line> lines;
  for (int r = -1; r < ranks; ++r) {
    Line& line = lines.emplace_back(Line{r < 0 ? "" : fmt::format("rank {}", r), "", "", ""});
    for (const std::vector<std::string>& column : columns) {
      const std::size_t width = std::ranges::max(column, {}, &std::string::size).size();
      line.note +=
          fmt::format("{:<{}}  ", column[static_cast<std::size_t>(r + 1)], std::max<std::size_t>(width, 8));
    }
  }
  return lines;
}

}  // namespace rankwise
