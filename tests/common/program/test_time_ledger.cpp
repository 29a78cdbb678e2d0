#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/error.hpp"
#include "common/memory/memory_ledger.hpp"
#include "common/program/time_ledger.hpp"
#include "common/program/trace.hpp"
#include "tests/catch.hpp"
#include "tests/world.hpp"

using namespace rankwise;

namespace {

constexpr double rounding_s = 1e-9;  // of a ledger, which counts whole nanoseconds

void work_for(int milliseconds)
{
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

/// Seconds of all kinds of work.
double total_seconds(const TimeLedger& time)
{
  double all = 0;
  for (int work = 0; work < work_kinds; ++work) all += time.seconds(static_cast<Work>(work));
  return all;
}

}  // namespace

TEST_CASE("TimeLedger: the innermost open span is written without its text being made")
{
  const auto written = [](std::size_t room) {
    std::string text(room, '?');
    text.resize(TimeLedger::write_innermost_span(text));
    return text;
  };
  CHECK(written(100).empty());
  TimeLedger time, other;
  const auto outer = time.span(Work::compute, "running the step");
  {
    const auto inner = other.span(Work::exposed, "averaging gradients");
    CHECK(written(100) == other.open_span());
    CHECK(written(9) == "averaging");
    // A thread works for the first one, until it has a span of its own.
    std::string of_thread, own;
    std::thread([&] {
      of_thread = written(100);
      const auto span = time.span(Work::io, "reading");
      own = written(7);
    }).join();
    CHECK(of_thread == "averaging gradients");
    CHECK(own == "reading");
  }
  CHECK(written(100) == time.open_span());
}

TEST_CASE("TimeLedger: nested spans count once, and the kinds add up to the outermost span")
{
  TimeLedger time;
  const Stopwatch clock;
  double inside_s = 0;
  {
    const auto outer = time.span(Work::compute, "outer");
    const Stopwatch inside;
    work_for(20);
    {
      const auto middle = time.span(Work::exposed, "middle");
      work_for(10);
      const auto inner = time.span(Work::waiting, "inner");
      work_for(30);
    }
    const auto again = time.span(Work::exposed, "again");
    work_for(5);
    inside_s = inside.seconds();
  }
  const double total_s = clock.seconds();
  // A sleep may be longer than asked for, never shorter.
  CHECK(time.seconds(Work::compute) >= 0.020);
  CHECK(time.seconds(Work::exposed) >= 0.015);
  CHECK(time.seconds(Work::waiting) >= 0.030);
  CHECK(time.seconds(Work::io) == 0);
  // All of the outermost span, and once: between what was measured just inside and just outside of it.
  CHECK(total_seconds(time) >= inside_s - rounding_s);
  CHECK(total_seconds(time) <= total_s + rounding_s);
}

TEST_CASE("TimeLedger: a span of another ledger takes no time from this one")
{
  TimeLedger mine, other;
  const Stopwatch clock;
  {
    const auto outer = mine.span(Work::compute, "mine");
    const auto between = other.span(Work::io, "other's");
    const auto inner = mine.span(Work::exposed, "mine again");
    work_for(10);
  }
  CHECK(mine.seconds(Work::exposed) >= 0.010);
  CHECK(total_seconds(mine) <= clock.seconds() + rounding_s);  // what lies inside is not counted twice
  CHECK(other.seconds(Work::io) >= 0.010);
}

TEST_CASE("TimeLedger: reset starts from zero, but not inside a span")
{
  TimeLedger time;
  {
    const auto span = time.span(Work::io, "reading");
    work_for(2);
    CHECK_THROWS_AS(time.reset(), Error);
  }
  CHECK(time.seconds(Work::io) > 0);
  time.reset();
  CHECK(total_seconds(time) == 0);
}

TEST_CASE("TimeLedger: spans nest within each thread separately")
{
  TimeLedger time;
  {
    const auto mine = time.span(Work::compute, "mine");
    std::thread other([&time] {
      for (int i = 0; i < 1000; ++i) const auto span = time.span(Work::exposed, "other's");
      const auto span = time.span(Work::waiting, "other's");
      work_for(10);
    });
    for (int i = 0; i < 1000; ++i) const auto span = time.span(Work::io, "mine too");
    other.join();
  }
  CHECK(time.seconds(Work::compute) + time.seconds(Work::io) >= 0.010);
  CHECK(time.seconds(Work::waiting) >= 0.010);
  time.reset();  // no span is open
}

TEST_CASE("TimeLedger: events are kept only after record()")
{
  const Stopwatch clock;
  TimeLedger time;
  {
    const auto span = time.span(Work::compute, "not recorded");
  }
  CHECK(time.events().empty());
  time.record();
  {
    const auto outer = time.span(Work::compute, "outer");
    const auto inner = time.span(Work::io, "a name that is longer than the forty-eight letters kept");
    work_for(1);
  }
  const std::vector<TraceEvent> events = time.events();
  REQUIRE(events.size() == 2);
  CHECK(events[0].name == "a name that is longer than the forty-eight lette");
  CHECK(events[0].work == Work::io);
  CHECK(events[1].name == "outer");
  CHECK(events[1].start_ns <= events[0].start_ns);
  CHECK(events[1].duration_ns >= events[0].duration_ns);
  CHECK(events[0].duration_ns >= 1'000'000);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const double age_s = 1e-9 * static_cast<double>(std::chrono::nanoseconds(now).count() - events[0].start_ns);
  CHECK(age_s >= 0);
  CHECK(age_s < clock.seconds() + 1);  // the two clocks may drift apart
}

TEST_CASE("TimeLedger::piece: what the thread has done since its latest event, with its line")
{
  TimeLedger time;
  time.piece("not recorded");
  time.record();
  CHECK(TimeLedger::innermost_span().first.empty());
  {
    const auto step = time.span(Work::io, "step");
    CHECK(TimeLedger::innermost_span() == std::pair<std::string_view, Work>("step", Work::io));
    work_for(1);
    time.piece("first");
    {
      const auto inner = time.span(Work::waiting, "inner");
      work_for(1);
    }
    time.piece("second");
  }
  const std::vector<TraceEvent> events = time.events();
  REQUIRE(events.size() == 4);  // first, inner, second, step
  CHECK(events[0].name == "first");
  CHECK(events[0].work == Work::compute);
  CHECK(events[0].start_ns == events[3].start_ns);
  CHECK(events[0].duration_ns >= 1'000'000);
  CHECK(events[2].start_ns == events[1].start_ns + events[1].duration_ns);
  CHECK(short_file_name(events[0].where.file_name()) == "tests/common/program/test_time_ledger.cpp");
  CHECK(events[2].where.line() == events[0].where.line() + 5);
  CHECK(time.seconds(Work::compute) == 0);  // its time is that of the span around it
}

TEST_CASE("TimeLedger: events have the times of a virtual clock, too")
{
  TimeLedger time;
  time.record();
  std::int64_t now_ps = 1000;
  follow_virtual_clock([&] { return now_ps; });
  {
    const auto span = time.span(Work::compute, "step");
    now_ps = 1500;
    time.piece("piece");
    now_ps = 1700;
  }
  follow_virtual_clock(nullptr);
  CHECK(event_time().virtual_ps == 0);
  const std::vector<TraceEvent> events = time.events();
  REQUIRE(events.size() == 2);
  CHECK(events[0].start_ps == 1000);
  CHECK(events[0].duration_ps == 500);
  CHECK(events[1].start_ps == 1000);
  CHECK(events[1].duration_ps == 700);
}

TEST_CASE("innermost_failed_span: the innermost span that an exception left")
{
  TimeLedger time;
  const auto fails = [&time] {
    const auto outer = time.span(Work::compute, "training");
    {
      const auto done = time.span(Work::io, "reading");
    }
    const auto inner = time.span(Work::exposed, std::string("averaging"));
    throw std::runtime_error("out of luck");
  };
  CHECK_THROWS(fails());
  CHECK_THAT(innermost_failed_span(), StartsWith("averaging (tests/common/program/test_time_ledger.cpp:"));
  {
    const auto next = time.span(Work::compute, "something else");
  }
  CHECK(innermost_failed_span().empty());
  time.reset();  // the spans that were left are closed
}

TEST_CASE("write_trace: the events of all ranks, a lane a kind of work")
{
  const std::string path =
      std::filesystem::temp_directory_path() / fmt::format("rankwise_{}_test_trace.json", getpid());
  TimeLedger time;
  time.record();
  {
    const auto outer = time.span(Work::compute, fmt::format("step of rank {}", world().rank()));
    for (int i = 0; i < world().rank(); ++i) const auto span = time.span(Work::exposed, "a \"quoted\" name");
    work_for(2);
  }
  write_trace(world(), path, time.events(), MemoryLedger());
  if (world().rank() == 0) {
    std::ifstream file(path);
    const nlohmann::json trace = nlohmann::json::parse(file);
    std::map<int, int> events_of_rank, lanes_of_rank;
    double earliest_us = 1e9;
    for (const auto& event : trace["traceEvents"]) {
      const int rank = event["pid"];
      if (event["name"] == "thread_name") ++lanes_of_rank[rank];
      CHECK(event["ph"] != "C");  // the ledger did not record
      if (event["ph"] != "X") continue;
      ++events_of_rank[rank];
      earliest_us = std::min(earliest_us, event["ts"].get<double>());
      const bool outer = event["name"] == fmt::format("step of rank {}", rank);
      CHECK(event["tid"] == static_cast<int>(outer ? Work::compute : Work::exposed));
      CHECK(event["cat"] == (outer ? "compute" : "exposed"));
      if (outer) CHECK(event["dur"].get<double>() >= 2000);
      if (outer) CHECK(event["dur"].get<double>() < 10e6);
    }
    CHECK(earliest_us == 0);
    CHECK(static_cast<int>(events_of_rank.size()) == world().ranks());
    for (int rank = 0; rank < world().ranks(); ++rank) {
      CHECK(events_of_rank[rank] == 1 + rank);
      CHECK(lanes_of_rank[rank] == work_kinds);
    }
    std::filesystem::remove(path);
  }
}

TEST_CASE("write_trace: the memory of each rank as a counter, on the clock of the spans")
{
  const std::string path =
      std::filesystem::temp_directory_path() / fmt::format("rankwise_{}_test_memory_trace.json", getpid());
  const int rank = world().rank();
  TimeLedger time;
  MemoryLedger memory;
  memory.enter(Category::parameters, Tier::device, 1000 + rank, "parameters");
  time.record();
  memory.record();
  work_for(2);
  {
    const auto span = time.span(Work::compute, "step");
    memory.enter(Category::gradients, Tier::device, 10, "gradients");
    work_for(1);
    memory.enter(Category::staging, Tier::host, 5, "elsewhere");
    if (rank == 0) memory.leave(Category::gradients, Tier::device, 10);
  }
  write_trace(world(), path, time.events(), memory);
  if (rank == 0) {
    std::ifstream file(path);
    const nlohmann::json trace = nlohmann::json::parse(file);
    std::map<int, std::vector<nlohmann::json>> counters;
    std::map<int, nlohmann::json> steps;
    double earliest_us = 1e9;
    for (const auto& event : trace["traceEvents"]) {
      if (event["ph"] == "M") continue;
      earliest_us = std::min(earliest_us, event["ts"].get<double>());
      if (event["ph"] == "C") counters[event["pid"]].push_back(event);
      if (event["ph"] == "X") steps[event["pid"]] = event;
    }
    CHECK(earliest_us == 0);  // what a ledger begins with may be the earliest event
    for (int r = 0; r < world().ranks(); ++r) {
      REQUIRE(counters[r].size() == (r == 0 ? 3 : 2));
      for (const nlohmann::json& counter : counters[r]) {
        CHECK(counter["name"] == "memory");
        CHECK(counter["args"].size() == 2);  // what this rank never has is left out; what is zero now is not
        CHECK(counter["args"]["parameters"] == 1000 + r);
      }
      CHECK(counters[r][0]["args"]["gradients"] == 0);
      CHECK(counters[r][1]["args"]["gradients"] == 10);
      if (r == 0) CHECK(counters[r][2]["args"]["gradients"] == 0);
      const double begin_us = steps[r]["ts"].get<double>(), end_us = begin_us + steps[r]["dur"].get<double>();
      CHECK(counters[r][0]["ts"].get<double>() <= begin_us - 2000);
      CHECK(counters[r][1]["ts"].get<double>() >= begin_us);
      CHECK(counters[r].back()["ts"].get<double>() <= end_us);
    }
    std::filesystem::remove(path);
  }
}

TEST_CASE("write_trace: an arrow for each message, whose ends have one number")
{
  const std::string path =
      std::filesystem::temp_directory_path() / fmt::format("rankwise_{}_test_arrows.json", getpid());
  const int rank = world().rank(), N = world().ranks();
  const auto end_of = [](bool sends, int peer) {
    return MessageEvent{.sends = sends,
                        .peer = peer,
                        .number = 3,
                        .bytes = 40,
                        .group = "dp",
                        .collective = "all-gather",
                        .call = 2,
                        .purpose = "unit 1",
                        .all_bytes = 80,
                        .counted = true,
                        .lane = Work::hidden,
                        .where = SourceLocation::current(),
                        .time = event_time()};
  };
  std::vector<MessageEvent> messages;  // from each rank to the next one
  if (N > 1) messages = {end_of(true, (rank + 1) % N), end_of(false, (rank + N - 1) % N)};
  write_trace(world(), path, {}, MemoryLedger(), messages);
  if (rank == 0) {
    std::ifstream file(path);
    const nlohmann::json trace = nlohmann::json::parse(file);
    std::map<std::int64_t, std::map<std::string, nlohmann::json>> arrows;
    for (const auto& event : trace["traceEvents"])
      if (event["ph"] != "M") arrows[event["id"]][event["ph"]] = event;
    CHECK(static_cast<int>(arrows.size()) == (N > 1 ? N : 0));
    for (auto& [id, ends] : arrows) {
      CHECK(ends.size() == 2);
      CHECK(ends["s"]["pid"] == ends["s"]["args"]["from"]);
      CHECK(ends["f"]["pid"] == ends["s"]["args"]["to"]);
      CHECK(ends["s"]["args"] == ends["f"]["args"]);
      CHECK(ends["s"]["ts"].get<double>() >= 0);
      CHECK(ends["s"]["args"]["bytes"] == 40);
      CHECK(ends["s"]["tid"] == static_cast<int>(Work::hidden));
    }
    std::filesystem::remove(path);
  }
}

TEST_CASE("measure_clock: the offset of a clock that is wrong is found within the error that is reported")
{
  const std::int64_t wrong_ns = 1'000'000'000 * world().rank();
  const ClockOffset found = measure_clock(world(), [&] {  // the steady clock is one on a machine
    const auto steady = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(steady).count() + wrong_ns;
  });
  CHECK(std::abs(found.offset_ns + wrong_ns) <= found.error_ns);
  CHECK(found.error_ns < 1'000'000'000);
  CHECK((found.error_ns == 0) == (world().rank() == 0));
}

TEST_CASE("AlignedClock: corrects what is larger than its error, and drift evenly")
{
  const AlignedClock same({{.at_ns = 0, .offset_ns = 5, .error_ns = 9}},
                          {.at_ns = 1000, .offset_ns = -7, .error_ns = 8});
  CHECK(same(500) == 500);
  CHECK(same.json() ==
        nlohmann::json{{"offset_us", -0.007}, {"error_us", 0.008}, {"drift_us", -0.012}, {"corrected", false}});

  const AlignedClock late({{.at_ns = 0, .offset_ns = 105, .error_ns = 9}},
                          {.at_ns = 1000, .offset_ns = 100, .error_ns = 3});
  CHECK(late(500) == 600);  // the better measurement

  const AlignedClock drifts({{.at_ns = 0, .offset_ns = 100, .error_ns = 9}},
                            {.at_ns = 1000, .offset_ns = 200, .error_ns = 3});
  CHECK(drifts(0) == 100);
  CHECK(drifts(500) == 650);
  CHECK(drifts(1000) == 1200);
  CHECK(drifts.json()["corrected"] == true);
  CHECK(drifts.json()["error_us"].get<double>() ==
        Approx(0.009));  // the drift is as wrong as the worse measurement

  CHECK(AlignedClock({}, {.at_ns = 10, .offset_ns = -100, .error_ns = 3})(500) == 400);
}
