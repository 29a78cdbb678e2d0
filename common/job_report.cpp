#include "common/job_report.hpp"

#include <vector>

#include <fmt/format.h>

#include "common/text.hpp"

namespace rankwise {

void begin_job(Report& report, const std::string& lesson, const Session& session)
{
  report.comment(fmt::format("lesson {} on {} rank{}", lesson, session.ranks(), session.ranks() == 1 ? "" : "s"));
  report.json()["lesson"] = lesson;
  report.json()["ranks"] = session.ranks();
}

void report_memory(Report& report, const MemoryLedger& measured, const CategoryBytes& formula)
{
  const CategoryBytes &current = measured.current(Tier::device), &peak = measured.peak(Tier::device);
  std::vector<Line> lines;
  nlohmann::json &memory = report.json()["memory"], &rank = report.json()["memory_ranks"][0]["device"];
  const auto line = [&](std::string_view name, std::int64_t now, std::int64_t most, std::int64_t expected) {
    lines.push_back({std::string(name), format_bytes(now), format_bytes(expected),
                     fmt::format("bytes, peak {}", format_bytes(most))});
  };
  for (int c = 0; c < category_count; ++c) {
    const auto category = static_cast<Category>(c);
    const std::string name(name_of(category));
    memory[name] = {{"current", current[category]}, {"peak", peak[category]}, {"formula", formula[category]}};
    rank[name] = {{"current", current[category]}, {"peak", peak[category]}};
    if (peak[category] == 0 && formula[category] == 0) continue;
    line(name, current[category], peak[category], formula[category]);
    report.check("bytes of " + name, formula[category], current[category], current[category] == formula[category]);
  }
  line("total", current.total(), measured.peak_total(Tier::device), formula.total());
  report.block("memory", lines);
}

}  // namespace rankwise
