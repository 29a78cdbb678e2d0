// Lesson 02: Collectives by hand
//
// Builds on:    nothing but messages: send, receive, and both at once
// New idea:     whatever N ranks do together is made of messages between two, and what it costs can be counted before it
//               is done: messages times latency plus bytes over bandwidth. A ring moves the fewest bytes in 2 (N-1) steps;
//               halving and doubling as few in 2 log2 N; ranks of one node can read each other's memory instead.
// Memory:       the vector, and scratch for what arrives: four messages of at most 256 KiB (ring), a vector (halving, tree)
// Traffic:      ring all-reduce: 2 (N-1)/N of the vector's bytes sent per rank, in 2 (N-1) steps; all others by formula too
// Paper:        Patarasuk and Yuan 2009; Thakur, Rabenseifner and Gropp 2005; Hensgen, Finkel and Manber 1988
//
// Sample runs:  mpirun -np 1 build/lessons/02_collectives --count=1000
//               mpirun -np 3 build/lessons/02_collectives --collective=all-reduce --collectives=textbook-ring
//               mpirun -np 2 build/lessons/02_collectives
//               mpirun -np 3 build/lessons/02_collectives --collective=reduce-scatter --collectives=ring --count=1000003
//               mpirun -np 4 build/lessons/02_collectives --collective=all-reduce --count=16777216 --repeats=3
//               mpirun -np 4 build/lessons/02_collectives --collectives=hierarchical --ranks-per-node=2 --type=bf16
//               mpirun -np 4 build/lessons/02_collectives --collective=broadcast --root=3 --type=u8 --check-messages
//               mpirun -np 4 build/lessons/02_collectives --count=124439808 --dry-run
//             * mpirun -np 4 build/lessons/02_collectives --device=cuda      (* needs a GPU; four of them for NCCL)
// Expect:       every rank sends what the formula says and ends with the same bits; the library is beaten or matched.
// (source scripts/mpi_environment.sh once; then mpirun works as written, also with more ranks than cores)

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/text.hpp"
#include "common/collectives/collectives.hpp"
#include "common/cuda/devices.hpp"
#include "common/messages/job_report.hpp"
#include "common/messages/program.hpp"
#include "common/program/device_option.hpp"
#include "common/program/options.hpp"
#include "common/program/placement.hpp"
#include "common/program/report.hpp"
#include "common/program/trace.hpp"
#include "lessons/02_collectives/fit.hpp"
#include "lessons/02_collectives/measure.hpp"
#include "lessons/02_collectives/show.hpp"

namespace rankwise {
namespace {

// ---- Options ---------------------------------------------------------------------------------------------------------

/// Words that may be chosen, as OptionTable wants them.
std::vector<std::pair<std::string, std::string>> choices(std::vector<std::string> words)
{
  std::vector<std::pair<std::string, std::string>> all;
  for (const std::string& word : words) all.emplace_back(word, word);
  return all;
}

const std::vector<std::string> collective_names{"reduce-scatter", "all-gather", "all-reduce",
                                                "broadcast",      "reduce",     "barrier"};

struct Options {
  OptionTable table{"02_collectives", "Collectives by hand"};

  std::string collective = "all", algorithm = "all";
  std::int64_t count = 1 << 20;
  DType type = DType::f32;
  int root = 0, ranks_per_node = 0, repeats = 5;
  bool check_messages = false, dry_run = false;
  DeviceKind device = DeviceKind::cpu;
  TransportKind transport = TransportKind::automatic;
  std::string report, trace;

  Options()
  {
    std::vector<std::string> collectives{"all"}, ways{"all", "textbook-ring", "naive"};
    collectives.insert(collectives.end(), collective_names.begin(), collective_names.end());
    for (const auto& [word, meaning] : algorithms()) ways.push_back(word);
    std::vector<std::pair<std::string, DType>> types;
    for (const DType t : {DType::f32, DType::bf16, DType::f64, DType::i32, DType::i64, DType::u8})
      types.emplace_back(name_of(t), t);

    table.add_choice("Collectives", "collective", collective, choices(collectives), "what the ranks do together");
    table.add_choice("Collectives", "collectives", algorithm, choices(ways), "by which algorithm");
    table.add("Collectives", "count", count, "elements of each rank's vector");
    table.add_choice("Collectives", "type", type, types, "of the elements");
    table.add("Collectives", "root", root, "rank that broadcasts, or gets the sum of reduce");
    table.add("Ranks", "ranks-per-node", ranks_per_node, "pretend that so many ranks make a node; 0: the machines");
    table.add("Ranks", "check-messages", check_messages, "compare what the ranks call, before each collective");
    declare_transport(table, "Ranks", transport);
    declare_device(table, device);
    table.add("Run", "repeats", repeats, "timed calls; their median counts");
    table.add_file("Run", "report", report, FileUse::print, "where to write the report");
    table.add_file("Run", "trace", trace, FileUse::print, "where to write what happened when");
    table.add("Run", "dry-run", dry_run, "print the formulas, send nothing");
  }

  Problem problem() const { return {count, type, root}; }
  Ways ways() const { return {ranks_per_node, check_messages, device, transport}; }
  /// Which ranks share a node.
  Topology topology() const { return topology_of_job(ranks_per_node, device); }
};

/// What is compared: of each collective the algorithms that differ in it, or the one that was asked for.
std::vector<Candidate> candidates(const Options& options, const Topology& topology)
{
  std::vector<Candidate> all;
  for (const std::string& collective : collective_names) {
    if (options.collective != "all" && options.collective != collective) continue;
    const bool two_halves = collective.starts_with("all-") || collective == "reduce-scatter";
    std::vector<std::string> ways{options.algorithm};
    if (options.algorithm == "all") {
      ways = two_halves ? std::vector<std::string>{"ring", "tree", "halving"} : std::vector<std::string>{"tree"};
      if (collective == "broadcast") ways.insert(ways.begin(), "ring");
      if (collective == "all-reduce") ways.insert(ways.begin(), {"naive", "textbook-ring"});
      if (topology.nodes > 1 && topology.ranks_per_node() > 1 && collective != "barrier")
        ways.emplace_back("hierarchical");
      if (topology.nodes == 1 && topology.device == DeviceKind::cpu) ways.emplace_back("shared");
      ways.emplace_back("library");
    }
    for (const std::string& way : ways)
      if (const Candidate candidate{collective, way}; !candidate.written_here() || collective == "all-reduce")
        all.push_back(candidate);
  }
  return all;
}

// ---- State -----------------------------------------------------------------------------------------------------------

/// What this rank holds: its vector, and what it measures with.
struct State {
  explicit State(const Options& o) : options(o) {}

  const Options& options;                                           // what was asked for
  Communicator all = Communicator::world();                         // all ranks
  Topology topology = options.topology();                           // which of them share a node
  Bench bench{options.problem(), all, options.ways()};              // vectors, groups, ledgers
  std::vector<Candidate> compared = candidates(options, topology);  // what makes the collectives
};

// ---- Measure ---------------------------------------------------------------------------------------------------------

/// The line through the times of single messages, if there is a second rank to send them to.
void fit_messages(State& state, Results& results)
{
  if (results.N == 1) return;
  const auto span = state.bench.time.span(Work::exposed, "messages to and fro");
  const std::unique_ptr<Group> group = state.bench.make_group({"send", "ring"});
  results.times = ping_pong(*group);
  results.fit = fit_line(results.times);
}

/// What all candidates do, one after the other.
Results measure_all(State& state)
{
  Results results;
  results.problem = state.options.problem();
  results.N = state.all.ranks();
  fit_messages(state, results);
  for (const Candidate& candidate : state.compared)
    results.all.push_back(measure(state.bench, candidate, results.fit.line, state.options.repeats));
  return results;
}

// ---- Run -------------------------------------------------------------------------------------------------------------

/// Refuses what cannot be done, before anything is sent.
void check(const Options& options, const Session& session)
{
  constexpr std::int64_t most = std::int64_t{1} << 33;
  if (options.count < 0 || options.count > most)
    throw UserError(fmt::format("--count={} is no number of elements.", options.count),
                    fmt::format("Use 0 to {}.", group_digits(most)));
  if (options.root < 0 || options.root >= session.ranks())
    throw UserError(
        fmt::format("--root={}, but the {} ranks are 0 to {}.", options.root, session.ranks(), session.ranks() - 1),
        "Choose one of them, or start more with `mpirun -np`.");
  if (options.repeats < 1)
    throw UserError(fmt::format("--repeats={} measures nothing.", options.repeats), "Use 1 or more.");
  if (options.ranks_per_node < 0)
    throw UserError(fmt::format("--ranks-per-node={} makes no nodes.", options.ranks_per_node),
                    "Use 1 or more, or 0 for the machines as they are.");
  const bool sums = options.collective == "all" || options.collective.find("reduce") != std::string::npos;
  if (sums && options.type == DType::u8)
    throw UserError(fmt::format("--type=u8 with --collective={}: bytes cannot be added up.", options.collective),
                    "Use --collective=all-gather, broadcast or barrier, or another type.");
  const Candidate asked{options.collective, options.algorithm};
  if (asked.written_here() && options.collective != "all" && options.collective != "all-reduce")
    throw UserError(fmt::format("--collectives={} with --collective={}.", options.algorithm, options.collective),
                    "Only the all-reduce has such a form here: use --collective=all-reduce.");
  check_algorithm(asked.of_group(), options.topology());
  check_transport(options.transport, options.device);
  if (options.dry_run) return;
  check_device(options.device);
  check_own_gpus(options.transport, options.device);
}

/// Prints who takes part, and enters layout and options in the document.
void begin(Report& report, const Options& options, const Session& session, const Topology& topology)
{
  begin_job(report, "02_collectives", session.ranks());
  report.comment(fmt::format("each has {} elements of type {}: {} bytes", group_digits(options.count),
                             name_of(options.type), group_digits(options.problem().n * bytes_of(options.type))));
  for (int node = 0; node < topology.nodes && topology.nodes > 1; ++node)
    report.comment(fmt::format("node {}: ranks {}", node, fmt::join(topology.ranks_of(node), " ")));
  if (const std::string given = options.table.table(); !given.empty()) report.comment(given);
  nlohmann::json& json = report.json();
  json["layout"] = {{"dp", session.ranks()}, {"tp", 1}, {"pp", 1}};
  json["nodes"] = topology.nodes;
  json["options"] = options.table.json();
}

/// The formulas of all candidates, with nothing sent.
void show_plan(Report& report, const Options& options, const Topology& topology)
{
  std::vector<Line> lines;
  for (const Candidate& candidate : candidates(options, topology)) {
    if (candidate.algorithm == "auto") continue;  // a group decides
    Traffic most;
    for (int r = 0; r < static_cast<int>(topology.node_of.size()); ++r) {
      const Traffic t = traffic_formula(candidate, candidate.of_group(), options.problem(), topology, r);
      if (t.bytes + t.read_bytes >= most.bytes + most.read_bytes) most = t;
    }
    lines.push_back({candidate.name(), group_digits(most.bytes + most.read_bytes), "",
                     most.read_bytes > 0 ? "bytes read" : fmt::format("bytes, messages {}", most.messages)});
  }
  report.block("traffic of the rank that sends most", lines);
}

/// Measures, and tells.
int run(const Options& options, const Session& session)
{
  Report report(session.rank() == 0, options.report);
  if (options.dry_run) {
    const Topology topology = options.topology();
    begin(report, options, session, topology);
    show_plan(report, options, topology);
    return report.finish();
  }
  State state(options);
  begin(report, options, session, state.topology);
  report_placement(report, session, options.device);
  if (!state.bench.carrier.text.empty()) report.comment(state.bench.carrier.text);
  report.comment(describe_algorithm(*state.bench.make_group({"all-reduce", "auto"})));
  if (!options.trace.empty()) {
    state.bench.time.record();
    state.bench.ledger.record();
  }

  const Results results = measure_all(state);
  for (const Findings& findings : results.all) show_steps(report, findings, results.N);
  show_traffic(report, results);
  show_fit(report, results);
  show_time(report, results);
  show_sums(report, results);
  enter_findings(report, results);
  if (!options.trace.empty()) write_trace(session, options.trace, state.bench.time.events(), state.bench.ledger);
  return report.finish();
}

}  // namespace
}  // namespace rankwise

int main(int argc, char** argv)
{
  using namespace rankwise;
  Options options;
  return run_program(
      argc, argv, options.table, [&](const Session& session) { check(options, session); },
      [&](Session& session) { return run(options, session); });
}
