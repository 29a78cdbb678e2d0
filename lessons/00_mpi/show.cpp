#include "lessons/00_mpi/show.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include <fmt/format.h>

#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "lessons/00_mpi/deadlock.hpp"
#include "lessons/00_mpi/eager.hpp"
#include "lessons/00_mpi/ranks.hpp"
#include "lessons/00_mpi/round_trip.hpp"
#include "lessons/frame/instruments/fit.hpp"

namespace rankwise {

namespace {

/// "rank 0 waits for rank 1, rank 1 for rank 2, ...", of the ranks that wait.
std::string who_waits(const std::vector<int>& waits)
{
  std::string text;
  const int N = static_cast<int>(waits.size());
  for (int r = 0; r < N; ++r)
    if (waits[static_cast<std::size_t>(r)] != 0)
      text += fmt::format("{}rank {} {}for rank {}", text.empty() ? "" : ", ", r, text.empty() ? "waits " : "",
                          (r + 1) % N);
  return text.empty() ? "no rank waits" : text;
}

/// A bar for a time, on a logarithmic scale: three characters for each factor of 2.
std::string bar(double time_s, double shortest_s)
{
  const double doublings = std::log2(time_s / shortest_s);
  return std::string(static_cast<std::size_t>(std::lround(1 + 3 * std::clamp(doublings, 0.0, 20.0))), '#');
}

}  // namespace

bool has_two_ranks(MpiRun& run, const std::string& part)
{
  if (ranks_of(run.comm) > 1) return true;
  run.report.block(part, {{"needs two ranks: start it with `mpirun -np 2`", "", "", ""}});
  return false;
}

// ---- Deadlock --------------------------------------------------------------------------------------------------------

void show_deadlock(MpiRun& run)
{
  struct Case {
    Sending sending;
    std::int64_t bytes;
  };
  const int N = ranks_of(run.comm);
  std::vector<Line> lines;
  for (const Case& c : {Case{Sending::standard, 8}, {Sending::standard, 4 << 20}, {Sending::synchronous, 8}}) {
    const std::vector<int> waits = try_circle(c.bytes, c.sending, run.comm);
    const auto waiting = std::count(waits.begin(), waits.end(), 1);
    const std::string call = c.sending == Sending::standard ? "MPI_Send" : "MPI_Ssend";
    lines.push_back({fmt::format("{} of {} bytes", call, group_digits(c.bytes)),
                     fmt::format("{} of {}", waiting, N), "", "wait: " + who_waits(waits)});
    run.report.json()["deadlock"].push_back({{"call", call}, {"bytes", c.bytes}, {"waits", waits}});
    if (c.sending == Sending::synchronous)
      run.report.check("MPI_Ssend in a circle", fmt::format("{} ranks wait", N), waiting, waiting == N);
  }
  run.report.block("a circle of sends: every rank sends to the next one before it receives", lines);
  run.report.block("the way out", {{"every rank has received", "", "", "so all sends have ended"}});
}

// ---- Ping-pong -------------------------------------------------------------------------------------------------------

void show_ping_pong(MpiRun& run)
{
  if (!has_two_ranks(run, "ping-pong")) return;
  const std::vector<MessageTime> times = measure_messages(run.options.repeats, run.comm);
  const Fit fit = fit_line(times);
  const auto [alpha_s, beta] = fit.line;
  const double shortest_s = std::ranges::min(times, {}, &MessageTime::time_s).time_s;
  std::vector<Line> lines;
  nlohmann::json messages;
  for (const MessageTime& m : times) {
    lines.push_back(
        {fmt::format("{:>9} bytes", group_digits(m.bytes)), fmt::format("{:.2f}", 1e6 * m.time_s), "",
         fmt::format("us {:8.3f} GB/s  line {:8.2f} us  {}", 1e-9 * static_cast<double>(m.bytes) / m.time_s,
                     1e6 * fit.line.time_s(m.bytes), bar(m.time_s, shortest_s))});
    messages.push_back({{"bytes", m.bytes}, {"time_s", m.time_s}});
  }
  run.report.block(
      fmt::format("ping-pong of ranks 0 and 1: half of the median of {} round trips", run.options.repeats), lines);
  run.report.block(
      "the line t = alpha + beta b with the least squares of relative errors",
      {{"alpha", fmt::format("{:.2f}", 1e6 * alpha_s), "", "us, latency of a message"},
       {"beta", fmt::format("{:.4f}", 1e9 * beta), "",
        "ns per byte, so a bandwidth of " + describe_bandwidth(fit.line, times)},
       {"alpha / beta", beta > 0 ? group_digits(std::llround(alpha_s / beta)) : "no number of", "",
        "bytes: half of the time is latency"},
       {"residual", fmt::format("{:.0f}", 100 * fit.residual), "", "%, root mean square of the differences"}});
  run.report.json()["ping_pong"] = {
      {"messages", messages}, {"alpha_s", alpha_s}, {"beta_s_per_byte", beta}, {"residual", fit.residual}};
}

// ---- Eager or rendezvous ---------------------------------------------------------------------------------------------

void show_eager(MpiRun& run)
{
  if (!has_two_ranks(run, "eager or rendezvous")) return;
  constexpr double late_s = 0.02;
  std::vector<Line> lines;
  for (const std::int64_t bytes : {8, 512, 4 << 10, 32 << 10, 1 << 20}) {
    const double asleep_s = late_receiver_s(bytes, Until::asleep, late_s, run.comm);
    const double in_library_s = late_receiver_s(bytes, Until::in_library, late_s, run.comm);
    lines.push_back({fmt::format("{:>9} bytes", group_digits(bytes)), fmt::format("{:.3f}", 1e3 * asleep_s), "",
                     fmt::format("ms if it sleeps, {:6.3f} ms if it is in MPI", 1e3 * in_library_s)});
    run.report.json()["eager"]["late"].push_back(
        {{"bytes", bytes}, {"asleep_s", asleep_s}, {"in_library_s", in_library_s}});
  }
  run.report.block(
      fmt::format("time until MPI_Send returns, if the receiver receives {:.0f} ms later", 1e3 * late_s), lines);
  const std::optional<EagerLimit> limit = find_eager_limit(run.comm);
  if (!limit) {
    run.report.block("eager or rendezvous", {{"no limit between 1 byte and 4 MiB", "", "", ""}});
    return;
  }
  run.report.block(
      "eager or rendezvous, by bisection",
      {{"eager", group_digits(limit->ends_alone), "", "bytes: the longest send that ends without its receiver"},
       {"rendezvous", group_digits(limit->waits), "", "bytes: the shortest send that waits for it"}});
  run.report.json()["eager"]["ends_alone"] = limit->ends_alone;
  run.report.json()["eager"]["waits"] = limit->waits;
}

}  // namespace rankwise
