#include "lessons/02_collectives/show.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "lessons/02_collectives/naive_all_reduce.hpp"

namespace rankwise {

namespace {

/// Checks a claim for some candidates, and names those for which it does not hold.
void check_all(Report& report, const std::string& claim, const std::string& expected, auto&& findings, auto&& holds)
{
  int all = 0;
  std::vector<std::string> bad;
  for (const Findings& f : findings) {
    ++all;
    if (!holds(f)) bad.push_back(f.candidate.name());
  }
  if (all == 0) return;
  report.check(claim, expected,
               bad.empty() ? fmt::format("{} of {}", all, all) : fmt::format("not {}", fmt::join(bad, ", ")),
               bad.empty());
}

/// Ratio of bus bandwidth to algorithm bandwidth: the fraction of the vector that a rank has to send, whatever the
/// algorithm. For an all-reduce it is 2 (N-1)/N: the sum of a shard needs the terms of the N-1 other ranks, and
/// each of them needs the sum. For each of its halves it is (N-1)/N, for broadcast and reduce 1, for a barrier or
/// one rank 0. In an all-to-all all leaves a rank but its own block, of which rank 0 has the smallest.
struct BusFactor {
  double value;
  const char* rule;
};

BusFactor bus_factor(const std::string& collective, int N)
{
  const double others = static_cast<double>(N - 1) / N;
  if (N == 1 || collective == "barrier") return {0, ""};
  if (collective == "all-reduce") return {2 * others, "2 (N-1)/N"};
  if (collective == "all-to-all-v") return {1 - 2.0 / (N * (N + 1)), "(1 - 2/(N (N+1)))"};
  if (collective == "reduce-scatter" || collective.starts_with("all-")) return {others, "(N-1)/N"};
  return {1, "1"};
}

double algorithm_GBps(const Findings& f, const Results& results)
{
  return static_cast<double>(results.bytes()) / f.time_s * 1e-9;
}

double bus_GBps(const Findings& f, const Results& results)
{
  return algorithm_GBps(f, results) * bus_factor(f.candidate.collective, results.N).value;
}

bool is_all_reduce(const Findings& f)
{
  return f.candidate.collective == "all-reduce";
}

}  // namespace

std::size_t busiest(const std::vector<RankCost>& by_rank)
{
  const auto load = [](const RankCost& cost) { return cost.sent.bytes + cost.sent.read_bytes; };
  return static_cast<std::size_t>(std::ranges::max_element(by_rank, {}, load) - by_rank.begin());
}

// ---- Steps and traffic -----------------------------------------------------------------------------------------------

void show_steps(Report& report, const Findings& findings, int N)
{
  if (findings.steps.messages.empty()) return;
  report.block(fmt::format("steps of {}: {}", findings.candidate.name(), findings.candidate.way()),
               step_table(findings.steps, N));
}

void show_traffic(Report& report, const Results& results)
{
  std::vector<Line> lines;
  Traffic measured, formula;
  for (const Findings& f : results.all) {
    const std::size_t r = busiest(f.measured);
    const Traffic &sent = f.measured[r].sent, &expected = f.formula[r].sent;
    const std::int64_t bytes = sent.bytes + sent.read_bytes;  // one of them is zero
    std::string note = sent.read_bytes > 0 ? "bytes read" : fmt::format("bytes, messages {:>3}", sent.messages);
    if (bytes > 0 && results.bytes() > 0 && f.candidate.collective != "barrier")
      note +=
          fmt::format(", {:.3f} of the vector", static_cast<double>(bytes) / static_cast<double>(results.bytes()));
    if (f.measured[r].scratch > 0) note += fmt::format(", scratch {}", group_digits(f.measured[r].scratch));
    lines.push_back(
        {f.candidate.name(), group_digits(bytes), group_digits(expected.bytes + expected.read_bytes), note});
    measured += sent;
    formula += expected;
  }
  report.block("traffic of the rank that sends most", lines);
  report.json()["traffic"]["world"] = {
      {"bytes", measured.bytes}, {"messages", measured.messages}, {"formula", formula.bytes}};
  check_all(report, "traffic = formula", "on all ranks", results.all, [](const Findings& f) {
    return std::ranges::equal(f.measured, f.formula, {}, &RankCost::sent, &RankCost::sent);
  });
  check_all(report, "scratch = formula", "on all ranks", results.all, [](const Findings& f) {
    return std::ranges::equal(f.measured, f.formula, {}, &RankCost::scratch, &RankCost::scratch);
  });
}

// ---- Time ------------------------------------------------------------------------------------------------------------

void show_fit(Report& report, const Results& results)
{
  if (results.times.empty()) return;
  const AlphaBeta& line = results.fit.line;
  std::vector<Line> lines;
  for (const MessageTime& m : results.times) {
    const double predicted = line.time_s(m.bytes);
    lines.push_back(
        {fmt::format("{} bytes", group_digits(m.bytes)), fmt::format("{:.2f}", 1e6 * m.time_s), "",
         fmt::format("us, the line says {:.2f}, {:+.0f} %", 1e6 * predicted, 100 * (predicted / m.time_s - 1))});
  }
  lines.push_back({"alpha", fmt::format("{:.2f}", 1e6 * line.alpha_s), "", "us, latency of a message"});
  lines.push_back({"beta", fmt::format("{:.3f}", 1e9 * line.beta_s_per_byte), "",
                   "ns/byte, so " + describe_bandwidth(line, results.times)});
  lines.push_back({"residual", fmt::format("{:.0f}", 100 * results.fit.residual), "",
                   "%, root mean square of the differences"});
  report.block("messages between two ranks, all pairs at once: t = alpha + beta b", lines);

  nlohmann::json& fit = report.json()["fit"];
  fit = {{"alpha_s", line.alpha_s}, {"beta_s_per_byte", line.beta_s_per_byte}, {"residual", results.fit.residual}};
  for (const MessageTime& m : results.times) fit["messages"].push_back({{"bytes", m.bytes}, {"time_s", m.time_s}});
}

namespace {

/// Block "bandwidth": the derivation of bus bandwidth with the figures of one candidate.
void show_derivation(Report& report, const Results& results, const Findings& f)
{
  const auto [factor, rule] = bus_factor(f.candidate.collective, results.N);
  const CollectiveOptions& o = results.options;
  report.block(
      "bandwidth of " + f.candidate.name(),
      {{"S", group_digits(results.bytes()), "",
        fmt::format("bytes: {} elements of {}", group_digits(o.count), bytes_of(o.type))},
       {"t", fmt::format("{:.3f}", 1e3 * f.time_s), "", "ms"},
       {"algorithm", fmt::format("{:.3f}", algorithm_GBps(f, results)), "S / t", "GB/s: what the caller sees"},
       {"a rank sends", group_digits(std::llround(factor * static_cast<double>(results.bytes()))),
        fmt::format("{} S = {:.3f} S", rule, factor), "bytes at least, whatever the algorithm"},
       {"bus", fmt::format("{:.3f}", bus_GBps(f, results)), fmt::format("{} S / t", rule),
        "GB/s: what the links carry, for any N"}});
}

}  // namespace

void show_time(Report& report, const Results& results)
{
  std::vector<Line> lines;
  for (const Findings& f : results.all) {
    std::string note = f.predicted_s > 0 ? fmt::format("ms  model {:>8.3f}", 1e3 * f.predicted_s)
                                         : std::string("ms                ");
    if (f.candidate.collective != "barrier" && results.bytes() > 0)
      note += fmt::format("  algorithm {:>7.3f} GB/s  bus {:>7.3f} GB/s", algorithm_GBps(f, results),
                          bus_GBps(f, results));
    lines.push_back({f.candidate.name(), fmt::format("{:.3f}", 1e3 * f.time_s), "", note});
  }
  report.block("time, and that of the messages alone in the model", lines);

  // The later lessons use the ring's all-reduce; if it was not measured, the first candidate is shown.
  const auto& all = results.all;
  auto shown = std::ranges::find(all, "all-reduce ring", [](const Findings& f) { return f.candidate.name(); });
  if (shown == all.end()) shown = all.begin();
  if (results.N > 1 && results.bytes() > 0 && shown->candidate.collective != "barrier")
    show_derivation(report, results, *shown);

  for (const Findings& f : all) {
    if (f.candidate.algorithm != "naive" || results.N == 1) continue;
    const double expected = naive_cost(results.bytes(), results.N, 0, results.fit.line).time_s;
    report.check("time of the naive all-reduce", fmt::format("{:.6g} s = 2 (N-1) (alpha + beta S)", expected),
                 f.predicted_s, std::abs(f.predicted_s - expected) <= 1e-9 * expected);
  }
}

// ---- Sums ------------------------------------------------------------------------------------------------------------

namespace {

/// True if an all-reduce adds in the order of tree_sum(), with the same rounding.
bool keeps_tree(const Findings& f, const Results& results)
{
  const bool power_of_two = std::has_single_bit(static_cast<unsigned>(results.N));
  if (f.algorithm == Algorithm::shared) return true;
  return f.algorithm == Algorithm::halving && power_of_two && results.options.type != DType::bf16;
}

/// The findings that @p keep accepts.
template <class Keep>
std::vector<Findings> chosen(const std::vector<Findings>& all, const Keep& keep)
{
  std::vector<Findings> some;
  std::ranges::copy_if(all, std::back_inserter(some), keep);
  return some;
}

}  // namespace

void show_sums(Report& report, const Results& results)
{
  const double bound = rounding_bound(results.options.type, results.N);
  const std::vector<Findings> sums = chosen(results.all, is_all_reduce);
  const auto n = static_cast<double>(std::max<std::int64_t>(results.options.count, 1));
  const auto percent = [&](const Difference& d) { return 100 * static_cast<double>(d.elements) / n; };
  std::vector<Line> lines;
  for (const Findings& f : sums)
    lines.push_back({f.candidate.name(), fmt::format("{:.1f}", percent(f.from_rank_order)), "",
                     fmt::format("% differ from ((0+1)+2)+.., by {:.1e} of the norm; {:.1f} % from the tree",
                                 f.from_rank_order.relative(), percent(f.from_tree))});
  if (!lines.empty()) report.block("order of sums", lines);

  check_all(report, "right results", "on all ranks", results.all, [](const Findings& f) { return f.wrong == 0; });
  check_all(report, "same bits", "on all ranks", sums, [](const Findings& f) { return f.same_bits; });
  check_all(report, "other orders", fmt::format("at most {:.1e} of the norm away", bound), sums,
            [&](const Findings& f) { return f.from_rank_order.relative() <= bound; });
  check_all(report, "order of the tree", "no bit differs",
            chosen(sums, [&](const Findings& f) { return keeps_tree(f, results); }),
            [](const Findings& f) { return f.from_tree.elements == 0; });
  const auto by = [&](const std::string& algorithm) {
    return chosen(sums, [&](const Findings& f) { return f.candidate.algorithm == algorithm; });
  };
  for (const Findings& ring : by("ring"))
    check_all(report, "textbook ring = ring", "no bit differs", by("textbook-ring"),
              [&](const Findings& f) { return f.hash == ring.hash; });
}

// ---- Document --------------------------------------------------------------------------------------------------------

namespace {

/// The traffic of all ranks, and their scratch.
std::pair<nlohmann::json, nlohmann::json> json_of(const std::vector<RankCost>& by_rank)
{
  nlohmann::json sent, scratch;
  for (const auto& [t, bytes] : by_rank) {
    sent.push_back({{"messages", t.messages}, {"bytes", t.bytes}, {"read_bytes", t.read_bytes}});
    scratch.push_back(bytes);
  }
  return {sent, scratch};
}

}  // namespace

void enter_findings(Report& report, const Results& results)
{
  nlohmann::json& collectives = report.json()["collectives"];
  collectives = nlohmann::json::array();
  for (const Findings& f : results.all) {
    const auto [sent, scratch] = json_of(f.measured);
    const auto [sent_formula, scratch_formula] = json_of(f.formula);
    nlohmann::json entry{{"collective", f.candidate.collective},
                         {"algorithm", f.candidate.algorithm},
                         {"chosen", f.candidate.written_here() ? f.candidate.algorithm : name_of(f.algorithm)},
                         {"sent", sent},
                         {"formula", sent_formula},
                         {"scratch_bytes", scratch},
                         {"scratch_formula", scratch_formula},
                         {"wrong", f.wrong},
                         {"time_s", f.time_s},
                         {"model_s", f.predicted_s},
                         {"algorithm_GBps", algorithm_GBps(f, results)},
                         {"bus_GBps", bus_GBps(f, results)},
                         {"steps", nlohmann::json::array()}};
    for (const ScheduledMessage& m : f.steps.messages)
      entry["steps"].push_back(
          {{"step", std::lround(m.start_s)}, {"from", m.from}, {"to", m.to}, {"what", m.what}});
    if (is_all_reduce(f))
      entry["order"] = {{"same_bits", f.same_bits},
                        {"differ_by_rank", f.from_rank_order.elements},
                        {"relative", f.from_rank_order.relative()},
                        {"differ_by_tree", f.from_tree.elements}};
    collectives.push_back(entry);
  }
}

}  // namespace rankwise
