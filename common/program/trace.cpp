#include "common/program/trace.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

#include <fmt/format.h>

#include "common/base/digest.hpp"
#include "common/base/error.hpp"
#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "common/files/output_file.hpp"

namespace rankwise {

namespace {

/// Nanoseconds in microseconds.
double us(std::int64_t time_ns)
{
  return 1e-3 * static_cast<double>(time_ns);
}

/// The clock of a trace: that of rank 0, from the earliest event of all ranks on.
struct TraceClock {
  AlignedClock aligned;
  std::int64_t origin_ns = 0;

  /// Time in the trace, in microseconds.
  double operator()(std::int64_t time_ns) const { return us(aligned(time_ns) - origin_ns); }
};

/// One counter event for each memory event, each with the same series: the categories that ever have bytes.
std::vector<nlohmann::json> counters(int rank, std::span<const MemoryEvent> memory, const TraceClock& clock)
{
  std::vector<Category> used;
  for (int c = 0; c < category_count; ++c) {
    const auto category = static_cast<Category>(c);
    if (std::any_of(memory.begin(), memory.end(),
                    [&](const MemoryEvent& event) { return event.bytes[category] > 0; }))
      used.push_back(category);
  }
  std::vector<nlohmann::json> all;
  for (const MemoryEvent& event : memory) {
    nlohmann::json series = nlohmann::json::object();
    for (const Category category : used) series[std::string(name_of(category))] = event.bytes[category];
    all.push_back({{"name", "memory"},
                   {"ph", "C"},
                   {"pid", rank},
                   {"ts", clock(event.time.wall_ns)},
                   {"ps", event.time.virtual_ps},
                   {"args", series}});
  }
  return all;
}

/// One end of the arrow of a message. Both ends have one id, by which a viewer joins them.
nlohmann::json message_end(int rank, const MessageEvent& event, const TraceClock& clock)
{
  const int from = event.sends ? rank : event.peer, to = event.sends ? event.peer : rank;
  const std::string message = fmt::format("{} {} {} {}", event.group, from, to, event.number);
  return {{"name", event.collective},
          {"cat", "message"},
          {"ph", event.sends ? "s" : "f"},
          {"bp", "e"},
          {"id", fast_hash(std::as_bytes(std::span(message))) >> 11},  // a number that JSON readers keep exactly
          {"pid", rank},
          {"tid", static_cast<int>(event.lane)},
          {"ts", clock(event.time.wall_ns)},
          {"ps", event.time.virtual_ps},
          {"args",
           {{"from", from},
            {"to", to},
            {"bytes", event.bytes},
            {"group", event.group},
            {"call", event.call},
            {"purpose", event.purpose},
            {"all_bytes", event.all_bytes},
            {"counted", event.counted},
            {"where", text_of(event.where)}}}};
}

/// The events of one rank as lines of JSON, each ending with a comma; the names of its lanes come first.
std::string trace_of_rank(int rank, std::span<const TraceEvent> events, std::span<const MemoryEvent> memory,
                          std::span<const MessageEvent> messages, const TraceClock& clock)
{
  using nlohmann::json;
  std::string text;
  const auto line = [&text](const json& event) { text += json_text(event) + ",\n"; };
  line({{"name", "process_name"}, {"ph", "M"}, {"pid", rank}, {"args", {{"name", fmt::format("rank {}", rank)}}}});
  line({{"name", "process_sort_index"}, {"ph", "M"}, {"pid", rank}, {"args", {{"sort_index", rank}}}});
  for (int lane = 0; lane < work_kinds; ++lane) {
    const json names = {{"name", name_of(static_cast<Work>(lane))}};
    line({{"name", "thread_name"}, {"ph", "M"}, {"pid", rank}, {"tid", lane}, {"args", names}});
  }
  for (const TraceEvent& event : events) {
    line({{"name", event.name},
          {"cat", name_of(event.work)},
          {"ph", "X"},
          {"pid", rank},
          {"tid", static_cast<int>(event.work)},
          {"ts", clock(event.start_ns)},
          {"dur", clock(event.start_ns + event.duration_ns) - clock(event.start_ns)},
          {"ps", event.start_ps},
          {"dur_ps", event.duration_ps},
          {"args", {{"where", text_of(event.where)}}}});
  }
  for (const json& counter : counters(rank, memory, clock)) line(counter);
  for (const MessageEvent& message : messages) line(message_end(rank, message, clock));
  return text;
}

/// Sends a text to rank 0.
void send_text(const std::string& text)
{
  check(text.size() <= std::numeric_limits<int>::max(), "a trace of more than 2 GB cannot be sent");
  check_mpi(MPI_Send(text.data(), static_cast<int>(text.size()), MPI_CHAR, 0, 0, job_ranks()), "sending a trace");
}

/// Receives the text of another rank, on rank 0.
std::string receive_text(int rank)
{
  MPI_Status status;
  check_mpi(MPI_Probe(rank, 0, job_ranks(), &status), "waiting for a trace");
  int count = 0;
  check_mpi(MPI_Get_count(&status, MPI_CHAR, &count), "asking for the length of a trace");
  std::string text(static_cast<std::size_t>(count), ' ');
  check_mpi(MPI_Recv(text.data(), count, MPI_CHAR, rank, 0, job_ranks(), MPI_STATUS_IGNORE), "receiving a trace");
  return text;
}

}  // namespace

nlohmann::json write_trace(const Session& session, const std::string& path, std::span<const TraceEvent> events,
                           const MemoryLedger& memory, std::span<const MessageEvent> messages,
                           const std::optional<ClockOffset>& begun)
{
  const std::vector<MemoryEvent> memory_events = memory.events();
  TraceClock clock{AlignedClock(begun, measure_clock(session))};
  std::int64_t first_ns = std::numeric_limits<std::int64_t>::max();
  for (const TraceEvent& event : events) first_ns = std::min(first_ns, clock.aligned(event.start_ns));
  for (const MemoryEvent& event : memory_events) first_ns = std::min(first_ns, clock.aligned(event.time.wall_ns));
  for (const MessageEvent& event : messages) first_ns = std::min(first_ns, clock.aligned(event.time.wall_ns));
  check_mpi(MPI_Allreduce(&first_ns, &clock.origin_ns, 1, MPI_INT64_T, MPI_MIN, job_ranks()),
            "finding the earliest event");

  std::string text = trace_of_rank(session.rank(), events, memory_events, messages, clock);
  nlohmann::json clocks = {clock.aligned.json()};
  if (session.rank() != 0) {
    send_text(text);
    send_text(json_text(clocks[0]));
    return {};
  }
  for (int rank = 1; rank < session.ranks(); ++rank) {
    text += receive_text(rank);
    clocks.push_back(parse_json(receive_text(rank)));
  }
  text.erase(text.size() - 2);  // the last comma
  write_file(
      path,
      fmt::format("{{\"displayTimeUnit\": \"ms\", \"otherData\": {{\"clocks\": {}}}, \"traceEvents\": [\n{}\n]}}\n",
                  json_text(clocks), text));
  return clocks;
}

}  // namespace rankwise
