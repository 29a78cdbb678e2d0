// Lesson 02: Collectives by hand
//
// Builds on:    lesson 00 (messages): it begins where that one ends, with a sum around a ring
// New idea:     every collective of N ranks is made of messages between two ranks, and its cost can be computed in
//               advance: messages times latency plus bytes over bandwidth. A ring sends the fewest bytes in 2 (N-1)
//               steps; halving and doubling needs 2 log2 N. Ranks of one node can read each other's memory.
// Memory:       the vector, and scratch for received messages: four of at most 256 KiB (ring), or a vector
//               (halving, tree)
// Traffic:      ring all-reduce: 2 (N-1)/N of the vector's bytes sent per rank, in 2 (N-1) steps; the others have
//               formulas too
// Paper:        Patarasuk and Yuan 2009; Thakur, Rabenseifner and Gropp 2005; Hensgen, Finkel and Manber 1988;
//               Bruck et al. 1997
//
// Sample runs:  mpirun -np 3 build/lessons/02_collectives --collective=all-reduce --collectives=textbook-ring
//               mpirun -np 4 build/lessons/02_collectives --collective=all-reduce --count=16777216 --repeats=3
//             * mpirun -np 4 build/lessons/02_collectives --device=cuda      (* needs a GPU; four of them for NCCL)
// Expect:       bytes sent = formula on every rank, the same bits on all ranks, times like the library's or better.
// (source scripts/mpi_environment.sh once; then mpirun works as written, also with more ranks than cores)

#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/json.hpp"
#include "common/base/text.hpp"
#include "common/collectives/collectives.hpp"
#include "common/messages/job_report.hpp"
#include "common/messages/program.hpp"
#include "common/program/placement.hpp"
#include "common/program/report.hpp"
#include "common/program/trace.hpp"
#include "lessons/02_collectives/measure.hpp"
#include "lessons/02_collectives/message_times.hpp"
#include "lessons/02_collectives/options.hpp"
#include "lessons/02_collectives/show.hpp"

namespace rankwise {
namespace {

// ---- What is compared ------------------------------------------------------------------------------------------------

/// The algorithms of a collective that differ.
std::vector<std::string> ways_of(const std::string& collective, const Topology& topology)
{
  if (collective.starts_with("all-to-all")) return {"pairwise", "bruck", "library"};
  const bool two_halves = collective.starts_with("all-") || collective == "reduce-scatter";
  std::vector<std::string> ways =
      two_halves ? std::vector<std::string>{"ring", "tree", "halving"} : std::vector<std::string>{"tree"};
  if (collective == "broadcast") ways.insert(ways.begin(), "ring");
  if (collective == "all-reduce") ways.insert(ways.begin(), {"naive", "textbook-ring"});
  if (topology.nodes > 1 && topology.ranks_per_node() > 1 && collective != "barrier")
    ways.emplace_back("hierarchical");
  if (topology.nodes == 1 && topology.device == DeviceKind::cpu) ways.emplace_back("shared");
  ways.emplace_back("library");
  return ways;
}

/// Collectives and algorithms to compare: for each collective the algorithms that differ, or the one of
/// --collectives. An all-to-all of blocks of one size needs a count that N divides.
std::vector<Candidate> candidates(const CollectiveOptions& options, const Topology& topology)
{
  std::vector<Candidate> all;
  for (const std::string& collective : collective_names()) {
    if (options.collective != "all" && options.collective != collective) continue;
    if (collective == "all-to-all" && options.count % std::ssize(topology.node_of) != 0) continue;
    const bool all_ways = options.algorithm == "all";
    for (const std::string& way : all_ways ? ways_of(collective, topology) : std::vector{options.algorithm})
      if (const Candidate candidate{collective, way}; candidate.exists()) all.push_back(candidate);
  }
  return all;
}

// ---- Measure ---------------------------------------------------------------------------------------------------------

/// Fits a line to the times of single messages, then measures all candidates, one after the other.
Results measure_all(Bench& bench)
{
  Results results{bench.options, bench.all.ranks()};
  if (results.N > 1) {
    const auto span = bench.time.span(Work::exposed, "messages to and fro");
    const std::unique_ptr<Group> group = bench.make_group({"send", "ring"});
    results.times = ping_pong(*group);
    results.fit = fit_line(results.times);
  }
  for (const Candidate& candidate : candidates(bench.options, bench.topology))
    results.all.push_back(measure(bench, candidate, results.fit.line));
  return results;
}

// ---- Run -------------------------------------------------------------------------------------------------------------

/// Prints the ranks, the vector and the nodes; adds layout and options to the document.
void begin(Report& report, const CollectiveOptions& options, const Session& session, const Topology& topology)
{
  begin_job(report, "02_collectives", session.ranks());
  report.comment(fmt::format("each has {} elements of type {}: {} bytes", group_digits(options.count),
                             name_of(options.type), group_digits(options.count * bytes_of(options.type))));
  for (int node = 0; node < topology.nodes && topology.nodes > 1; ++node)
    report.comment(fmt::format("node {}: ranks {}", node, fmt::join(topology.ranks_of(node), " ")));
  if (options.collective == "all" && options.count % session.ranks() != 0)
    report.comment(
        fmt::format("all-to-all is left out, because {} ranks do not divide the count", session.ranks()));
  if (const std::string given = options.table.table(); !given.empty()) report.comment(given);
  nlohmann::json& json = report.json();
  json["layout"] = {{"dp", session.ranks()}, {"tp", 1}, {"pp", 1}};
  json["nodes"] = topology.nodes;
  json["options"] = options.table.json();
}

/// Prints the traffic formulas of all candidates. Nothing is sent.
void show_plan(Report& report, const CollectiveOptions& options, const Topology& topology)
{
  std::vector<Line> lines;
  for (const Candidate& candidate : candidates(options, topology)) {
    if (candidate.algorithm == "auto") continue;  // a group decides
    std::vector<RankCost> by_rank;
    for (int r = 0; r < std::ssize(topology.node_of); ++r)
      by_rank.push_back(cost_of(candidate, options, topology, r));
    const Traffic& most = by_rank[busiest(by_rank)].sent;
    lines.push_back({candidate.name(), group_digits(most.bytes + most.read_bytes), "",
                     most.read_bytes > 0 ? "bytes read" : fmt::format("bytes, messages {}", most.messages)});
  }
  report.block("traffic of the rank that sends most", lines);
}

/// Measures all candidates and reports.
int run(const CollectiveOptions& options, const Session& session)
{
  Report report(session.rank() == 0, options.report);
  if (options.dry_run) {
    const Topology topology = options.topology();
    begin(report, options, session, topology);
    show_plan(report, options, topology);
    return report.finish();
  }
  Bench bench(options);
  begin(report, options, session, bench.topology);
  report_placement(report, options.device);
  if (!bench.carrier.text.empty()) report.comment(bench.carrier.text);
  report.comment(describe_algorithm(*bench.make_group({"all-reduce", "auto"})));
  if (!options.trace.empty()) {
    bench.time.record();
    bench.ledger.record();
  }

  const Results results = measure_all(bench);
  for (const Findings& findings : results.all) show_steps(report, findings, results.N);
  show_traffic(report, results);
  show_fit(report, results);
  show_time(report, results);
  show_sums(report, results);
  enter_findings(report, results);
  if (!options.trace.empty()) write_trace(session, options.trace, bench.time.events(), bench.ledger);
  return report.finish();
}

}  // namespace
}  // namespace rankwise

int main(int argc, char** argv)
{
  using namespace rankwise;
  CollectiveOptions options;
  return run_program(
      argc, argv, options.table, [&](const Session& session) { check_options(options, session); },
      [&](Session& session) { return run(options, session); });
}
