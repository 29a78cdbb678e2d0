#include "common/messages/job_report.hpp"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "common/base/json.hpp"
#include "common/base/text.hpp"

namespace rankwise {

std::string_view revision()
{
  return RANKWISE_REVISION;
}

namespace {

nlohmann::json provenance()
{
  const std::string mpi = mpi_library();
  return {{"date", fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)))},
          {"host", host_name()},
          {"revision", revision()},
          {"compiler", RANKWISE_COMPILER},
          {"mpi", mpi.substr(0, mpi.find(','))}};
}

}  // namespace

void begin_job(Report& report, const std::string& lesson, int ranks)
{
  report.comment(fmt::format("lesson {} on {} rank{}", lesson, ranks, ranks == 1 ? "" : "s"));
  report.json()["lesson"] = lesson;
  report.json()["ranks"] = ranks;
  report.json()["provenance"] = provenance();
}

namespace {

/// The device memory of one rank, as sent in a message.
struct RankMemory {
  CategoryBytes current, peak, formula, most;
  std::int64_t peak_total;
};

}  // namespace

void report_memory(Report& report, const Session& session, const MemoryLedger& measured,
                   const CategoryBytes& formula, const CategoryBytes& most_by_formula)
{
  const RankMemory own{measured.current(Tier::device), measured.peak(Tier::device), formula, most_by_formula,
                       measured.peak_total(Tier::device)};
  const std::vector<RankMemory> ranks = gather_all(own, job_ranks(), "gathering the memory of all ranks");
  const RankMemory& largest = *std::max_element(
      ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.peak_total < b.peak_total; });
  std::vector<Line> lines;
  nlohmann::json& json = report.json();
  const auto line = [&](std::string_view name, std::int64_t now, std::int64_t most, std::int64_t expected) {
    lines.push_back({std::string(name), group_digits(now), group_digits(expected),
                     fmt::format("bytes, peak {}", group_digits(most))});
  };
  for (int c = 0; c < category_count; ++c) {
    const auto category = static_cast<Category>(c);
    const std::string name(name_of(category));
    const std::int64_t now = largest.current[category], most = largest.peak[category],
                       expected = largest.formula[category];
    json["memory"][name] = {{"current", now}, {"peak", most}, {"formula", expected}};
    bool as_formula = true, most_as_formula = true;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      json["memory_ranks"][r]["device"][name] = {{"current", ranks[r].current[category]},
                                                 {"peak", ranks[r].peak[category]},
                                                 {"formula", ranks[r].formula[category]},
                                                 {"formula_peak", ranks[r].most[category]}};
      as_formula = as_formula && ranks[r].current[category] == ranks[r].formula[category];
      most_as_formula = most_as_formula && ranks[r].peak[category] == ranks[r].most[category];
    }
    if (as_formula && most == 0 && expected == 0) continue;
    line(name, now, most, expected);
    report.check("bytes of " + name, expected, now, as_formula);
    if (largest.most[category] != expected)
      report.check("most bytes of " + name, largest.most[category], most, most_as_formula);
  }
  json["memory_peak"] = largest.peak_total;
  line("total", largest.current.total(), largest.peak_total, largest.formula.total());
  report.block(session.ranks() > 1 ? "memory of the largest rank" : "memory", lines);
}

void report_traffic(Report& report, const std::string& group, const std::string& what, const Traffic& measured,
                    const Traffic& expected, const std::string& formula)
{
  const bool reads = expected.read_bytes > 0;  // from shared memory
  const std::int64_t bytes = reads ? measured.read_bytes : measured.bytes;
  const std::int64_t should = reads ? expected.read_bytes : expected.bytes;
  const std::string how = reads
                              ? "bytes read by rank 0"
                              : fmt::format("bytes sent by rank 0 in {} messages", group_digits(measured.messages));
  report.block("traffic", {{what, group_digits(bytes), group_digits(should), how + "; " + formula}});
  report.check("traffic of " + what, should, bytes, on_all_ranks(measured == expected));
  report.json()["traffic"][group] = {{"bytes", bytes}, {"messages", measured.messages}, {"formula", should}};
}

void report_receivers(Report& report, const std::string& axis, std::vector<std::int64_t> sent, int ranks)
{
  sent.resize(static_cast<std::size_t>(ranks));
  std::vector<std::int64_t> all(static_cast<std::size_t>(ranks * ranks));
  check_mpi(MPI_Allgather(sent.data(), ranks, MPI_INT64_T, all.data(), ranks, MPI_INT64_T, job_ranks()),
            "gathering the bytes sent between ranks");
  nlohmann::json& rows = report.json()["receivers"][axis];
  for (auto row = all.begin(); row != all.end(); row += ranks)
    rows.push_back(std::vector<std::int64_t>(row, row + ranks));
}

void report_clocks(Report& report, const nlohmann::json& clocks)
{
  const auto most = [&](const char* name) {
    double found = 0;
    for (const nlohmann::json& clock : clocks) found = std::max(found, std::abs(clock[name].get<double>()));
    return found;
  };
  bool corrected = false;
  for (const nlohmann::json& clock : clocks) corrected = corrected || clock["corrected"].get<bool>();
  report.comment(fmt::format(
      "clocks: at most {:.1f} us from rank 0's, measured within {:.1f} us, drift {:.1f} us; {}", most("offset_us"),
      most("error_us"), most("drift_us"), corrected ? "the trace is corrected" : "one clock"));
  report.json()["clocks"] = clocks;
}

bool on_all_ranks(bool holds)
{
  int all = holds ? 1 : 0;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_MIN, job_ranks()), "combining the ranks' checks");
  return all == 1;
}

}  // namespace rankwise
