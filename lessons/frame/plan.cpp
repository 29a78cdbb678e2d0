#include "lessons/frame/plan.hpp"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "common/messages/layers/link_options.hpp"

namespace rankwise {

CategoryBytes largest_on_device(const CostsOfRank& costs, int N)
{
  CategoryBytes largest;
  for (int rank = 0; rank < N; ++rank) {
    const Costs of_rank = costs({rank, N});
    const CategoryBytes& bytes = in_tier(Tier::device, of_rank.most);
    if (bytes.total() > largest.total()) largest = bytes;
  }
  return largest;
}

bool fits_with_one_sequence(SmallerRun& run, LessonOptions& options)
{
  return options.gradients == DType::f32 && run.fits_with("--micro-batch=1", options.micro_batch, std::int64_t{1});
}

void check_virtual_time(const CommunicationOptions& options, std::int64_t steps, std::int64_t flops,
                        const Costs& costs)
{
  if (options.link.empty()) return;
  const LinkOptions links = parse_link(options.link);
  Picoseconds step = virtual_time(flops, parse_flops(options.flops));
  for (const SentPerStep& sent : costs.sent)
    step = std::max(
        step, virtual_time(sent.traffic.bytes, std::max(links.inside.bandwidth_Bps, links.between.bandwidth_Bps)));
  virtual_time(steps, 1 / seconds(step));
}

void report_planned_traffic(Report& report, const Costs& costs)
{
  std::vector<Line> lines;
  for (const SentPerStep& sent : costs.sent)
    lines.push_back({sent.what, group_digits(sent.traffic.bytes), "", "bytes sent by rank 0; " + sent.formula});
  report.block("traffic", lines);
}

double longest_step_s(const std::vector<VirtualStep>& steps)
{
  Picoseconds longest = 0;
  for (const VirtualStep& step : steps) longest = std::max(longest, step.step);
  return seconds(longest);
}

void report_planned_time(Report& report, const CommunicationOptions& options,
                         const std::vector<StepScript>& scripts)
{
  const std::vector<VirtualStep> rehearsed = replay(scripts, parse_link(options.link));
  for (std::size_t rank = 0; rank < rehearsed.size(); ++rank) {
    nlohmann::json entry = as_json(rehearsed[rank]);
    entry["peak_bytes"] = scripts[rank].peak_bytes;
    report.json()["rehearsed"].push_back(entry);
  }
  const VirtualStep& slowest = std::ranges::max(rehearsed, {}, &VirtualStep::step);
  const auto ms = [](Picoseconds time) { return fmt::format("{:.4f}", 1e3 * seconds(time)); };
  report.block("time", {{"step", ms(slowest.step), "", "ms of the slowest rank, rehearsed message by message"},
                        {"compute", ms(slowest.compute), "", "ms; its FLOP / --flops"},
                        {"communication", ms(slowest.communication), "", "ms, hidden or not"},
                        {"exposed", ms(slowest.exposed), "", "ms that the computation has to wait"}});
}

void enter_plan(Report& report, const ModelConfig& config, const CostsOfRank& costs,
                const std::function<std::int64_t(RankOf)>& flops_of_rank, int N)
{
  nlohmann::json& plan = report.json()["plan"];
  plan["parameters"] = config.parameters();
  for (int rank = 0; rank < N; ++rank) {
    const Costs of_rank = costs({rank, N});
    nlohmann::json entry = {{"flops", flops_of_rank({rank, N})}};
    for (int t = 0; t < tier_count; ++t) {
      const auto tier = static_cast<Tier>(t);
      const CategoryBytes &kept = in_tier(tier, of_rank.kept), &most = in_tier(tier, of_rank.most);
      nlohmann::json& memory = entry["memory"][std::string(name_of(tier))];
      for (int c = 0; c < category_count; ++c) {
        const auto category = static_cast<Category>(c);
        memory[std::string(name_of(category))] = {{"kept", kept[category]}, {"peak", most[category]}};
      }
      memory["total"] = {{"kept", kept.total()}, {"peak", most.total()}};
    }
    entry["sent"] = nlohmann::json::object();
    for (const SentPerStep& sent : of_rank.sent)
      entry["sent"][sent.axis] = {{"bytes", sent.traffic.bytes}, {"messages", sent.traffic.messages}};
    plan["ranks"].push_back(entry);
  }
}

}  // namespace rankwise
