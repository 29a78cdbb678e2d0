#include "lessons/parallel/offload/offload_report.hpp"

#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "common/messages/job_report.hpp"

namespace rankwise {

void report_tier_plan(Report& report, const TierBytes& tiers, const LinkBytes& links)
{
  std::vector<Line> lines;
  for (const Tier tier : {Tier::host, Tier::disk}) {
    const CategoryBytes& bytes = in_tier(tier, tiers);
    for (int c = 0; c < category_count; ++c) {
      const auto category = static_cast<Category>(c);
      if (bytes[category] > 0)
        lines.push_back({fmt::format("{}, {}", name_of(tier), name_of(category)), group_digits(bytes[category]), "",
                         "bytes of rank 0"});
    }
  }
  report.block("tiers", lines);
  lines.clear();
  for (std::size_t l = 0; l < link_count; ++l)
    if (links[l] > 0)
      lines.push_back({std::string(name_of(static_cast<TierLink>(l))), group_digits(links[l]), "", "bytes a step"});
  report.block("links", lines);
}

void report_tiers(Report& report, const MemoryLedger& measured, const TierBytes& formula)
{
  std::vector<Line> lines;
  for (const Tier tier : {Tier::host, Tier::disk}) {
    const CategoryBytes now = measured.current(tier), peak = measured.peak(tier), expected = in_tier(tier, formula);
    for (int c = 0; c < category_count; ++c) {
      const auto category = static_cast<Category>(c);
      const std::string name = fmt::format("{}, {}", name_of(tier), name_of(category));
      if (category == Category::communication) {  // to and from a GPU, in memory that grows as it is needed
        if (peak[category] > 0)
          lines.push_back({name, group_digits(peak[category]), "", "bytes of rank 0 for messages"});
        continue;
      }
      const bool as_formula =
          on_all_ranks(now[category] == expected[category] && peak[category] == expected[category]);
      if (as_formula && expected[category] == 0) continue;
      lines.push_back({name, group_digits(now[category]), group_digits(expected[category]), "bytes of rank 0"});
      report.check("bytes of " + name, expected[category], now[category], as_formula);
    }
    const std::string name(name_of(tier));
    report.json()["tiers"][name] = {{"bytes", now.total() - now[Category::communication]},
                                    {"peak", peak.total() - peak[Category::communication]},
                                    {"formula", expected.total()}};
  }
  report.block("tiers", lines);
}

namespace {

std::string GBps(double bytes, double seconds)
{
  return seconds > 0 ? fmt::format("{:.3g}", 1e-9 * bytes / seconds) : "any";
}

}  // namespace

void report_links(Report& report, const LinkUse& use, const LinkBytes& formula, std::optional<double> disk_GBps)
{
  const auto count = static_cast<double>(use.steps);
  const double step_s = use.seconds / count, exposed_s = use.waited_s / count, hiding_s = step_s - exposed_s;

  std::vector<Line> lines;
  nlohmann::json& json = report.json()["links"];
  json = {{"exposed_s", exposed_s}, {"step_s", step_s}};
  for (std::size_t l = 0; l < link_count; ++l) {
    const std::string name(name_of(static_cast<TierLink>(l)));
    const bool as_formula = on_all_ranks(use.bytes[l] == use.steps * formula[l]);
    if (as_formula && formula[l] == 0) continue;
    const std::int64_t of_a_step = use.bytes[l] / use.steps;
    const auto bytes = static_cast<double>(of_a_step);
    const std::string reached = GBps(static_cast<double>(use.bytes[l]), use.busy_s[l]),
                      enough = GBps(bytes, hiding_s);
    lines.push_back({name, group_digits(of_a_step), group_digits(formula[l]),
                     fmt::format("bytes a step, at {} GB/s; {} GB/s would hide them", reached, enough)});
    report.check("bytes from " + name, formula[l], of_a_step, as_formula);
    json[name] = {{"bytes", of_a_step}, {"formula", formula[l]}, {"busy_s", use.busy_s[l] / count}};
  }
  if (disk_GBps) {
    lines.push_back({"disk by itself", fmt::format("{:.3g}", *disk_GBps), "",
                     "GB/s, reads and writes of a rank together, before the first step"});
    json["disk"] = {{"GBps", *disk_GBps}};
  }
  lines.push_back({"exposed", fmt::format("{:.4g}", exposed_s), "", "s a step, spent on waiting for blocks"});
  report.block("links", lines);
}

}  // namespace rankwise
