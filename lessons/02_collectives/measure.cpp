#include "lessons/02_collectives/measure.hpp"

#include <algorithm>
#include <utility>

#include "common/collectives/collectives.hpp"
#include "common/collectives/cost.hpp"
#include "lessons/02_collectives/naive_all_reduce.hpp"
#include "lessons/02_collectives/textbook_ring.hpp"

namespace rankwise {

// ---- Candidates ----

std::string Candidate::way() const
{
  if (algorithm == "auto") return "chosen by size and topology";
  if (algorithm == "shared") return "ranks read each other's memory";
  if (algorithm == "library") return "the library's own";
  if (algorithm == "naive") return "everything through rank 0, one rank after the other";
  if (algorithm == "textbook-ring") return "round the ring, one shard per step";
  if (collective == "barrier") return "dissemination";
  if (algorithm == "hierarchical") return "inside the nodes and between them";
  if (collective == "broadcast") return algorithm == "ring" ? "along a chain" : "down a binomial tree";
  if (collective == "reduce") return "up a binomial tree";
  if (algorithm == "ring") return "round the ring";
  return algorithm == "tree" ? "through rank 0 along a tree" : "halving and doubling, neighbours first";
}

Algorithm Candidate::of_group() const
{
  for (const auto& [word, meaning] : algorithms())
    if (word == algorithm) return meaning;
  return Algorithm::ring;  // the algorithms of this lesson only need send and receive
}

void make(const Candidate& candidate, const Tensor& values, int root, Group& group)
{
  if (candidate.algorithm == "naive")
    naive_all_reduce_sum(values, group);
  else if (candidate.algorithm == "textbook-ring")
    textbook_ring_all_reduce_sum(values, group);
  else if (candidate.collective == "reduce-scatter")
    reduce_scatter_sum(values, group);
  else if (candidate.collective == "all-gather")
    all_gather(values, group);
  else if (candidate.collective == "all-reduce")
    all_reduce_sum(values, group);
  else if (candidate.collective == "broadcast")
    broadcast(values, root, group);
  else if (candidate.collective == "reduce")
    reduce_sum(values, root, group);
  else
    barrier(group);
}

Traffic traffic_formula(const Candidate& candidate, Algorithm algorithm, const Problem& problem,
                        const Topology& topology, int rank)
{
  const int N = static_cast<int>(topology.node_of.size());
  if (candidate.algorithm == "naive") return naive_cost(problem.n * bytes_of(problem.type), N, rank, {}).sent;
  if (candidate.algorithm == "textbook-ring") return textbook_ring_traffic(problem.n, problem.type, N, rank);
  return expected_traffic({candidate.collective, algorithm, problem.type, problem.n, problem.root}, topology, rank);
}

std::int64_t scratch_formula(const Candidate& candidate, Algorithm algorithm, const Problem& problem,
                             const Topology& topology, int rank)
{
  const int N = static_cast<int>(topology.node_of.size());
  if (candidate.algorithm == "naive") return rank == 0 && N > 1 ? problem.n * bytes_of(problem.type) : 0;
  if (candidate.algorithm == "textbook-ring") return textbook_ring_scratch(problem.n, problem.type, N, rank);
  return scratch_bytes({{candidate.collective, algorithm, problem.type, problem.n, problem.root}}, topology, rank);
}

// ---- Bench ----

Bench::Bench(const Problem& p, const Communicator& communicator, const Ways& ways)
    : problem(p),
      all(communicator),
      device(make_device(ways.device)),
      carrier(choose_carrier(ways.transport, ways.device, false)),
      setup{.memory = memory,
            .stream = stream.get(),
            .traffic = &traffic,
            .ranks_per_node = ways.ranks_per_node,
            .check_messages = ways.check_messages,
            .log = &log,
            .nccl = carrier.nccl},
      own(host, Category::workspace, p.type, {p.n}, "own vector"),
      by_rank(host, Category::workspace, p.type, {p.n}, "sum by rank"),
      by_tree(host, Category::workspace, p.type, {p.n}, "sum by tree")
{
  fill(own.tensor(), communicator.rank());
  if (p.type == DType::u8) return;
  sum_of_ranks(by_rank.tensor(), communicator.ranks(), OrderOfSums::by_rank);
  sum_of_ranks(by_tree.tensor(), communicator.ranks(), OrderOfSums::tree);
}

std::unique_ptr<Group> Bench::make_group(const Candidate& candidate)
{
  traffic.clear();
  GroupSetup of_candidate = setup;
  of_candidate.algorithm = candidate.of_group();
  return std::make_unique<Group>("world", all.split(0, all.rank()), of_candidate);
}

// ---- Measure ----

namespace {

/// Gathers a number from each rank, by rank.
std::vector<std::int64_t> of_all_ranks(std::int64_t own, const Communicator& all)
{
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(all.ranks()));
  check_mpi(MPI_Allgather(&own, 1, MPI_INT64_T, numbers.data(), 1, MPI_INT64_T, all.handle()),
            "comparing the ranks' numbers");
  return numbers;
}

std::int64_t sum_of(const std::vector<std::int64_t>& numbers)
{
  std::int64_t sum = 0;
  for (const std::int64_t number : numbers) sum += number;
  return sum;
}

/// Records the messages of one call.
/// @return  events of all ranks.
std::vector<std::vector<MessageLog::Event>> record(Bench& bench, const Candidate& candidate, const Tensor& values,
                                                   Group& group)
{
  bench.log.events.clear();
  bench.log.recording = true;
  make(candidate, values, bench.problem.root, group);
  bench.log.recording = false;
  return gather_events(bench.log.events, bench.all);
}

/// Steps of the collective, recorded with a vector of N marked_shard() elements.
TransferSchedule record_steps(Bench& bench, const Candidate& candidate)
{
  const int N = bench.all.ranks();
  const bool sums = candidate.collective.find("reduce") != std::string::npos;
  const std::unique_ptr<Group> group = bench.make_group(candidate);
  const Buffer values(bench.memory, Category::workspace, DType::i64, {N}, "marked shards");
  std::vector<std::int64_t> marked;
  for (int s = 0; s < N; ++s) marked.push_back(marked_shard(s, bench.all.rank()));
  bench.stream->copy(values.tensor(), Tensor(std::span(marked), {N}));
  bench.log.describe = [&bench, N, sums](const Tensor& message) {
    if (message.type() != DType::i64) return std::string();
    std::vector<std::int64_t> there = to_host<std::int64_t>(*bench.stream, message);
    return describe_shards(Tensor(std::span(there), message.shape()), N, sums);
  };
  const TransferSchedule steps = play(record(bench, candidate, values.tensor(), *group), {1, 0});
  bench.log.describe = nullptr;
  return steps;
}

/// Number of wrong elements in this rank's result.
std::int64_t wrong_elements(const Bench& bench, const Candidate& candidate, const Tensor& result)
{
  const int N = bench.all.ranks(), r = bench.all.rank();
  const Partition partition(bench.problem.n, N);
  const auto wrong_sums = [&](Range where) {
    const double bound = rounding_bound(bench.problem.type, N);
    const Difference found = difference(result.slice(where), bench.by_tree.tensor().slice(where));
    return found.largest <= bound ? 0 : found.elements;
  };
  const auto wrong_copies = [&](int from, Range where) {
    const Buffer whole(bench.host, Category::workspace, bench.problem.type, {bench.problem.n}, "what was sent");
    fill(whole.tensor(), from);
    return difference(result.slice(where), whole.tensor().slice(where)).elements;
  };
  const Range everything{0, bench.problem.n};
  if (candidate.collective == "all-reduce") return wrong_sums(everything);
  if (candidate.collective == "reduce-scatter") return wrong_sums(partition.shard(r));
  if (candidate.collective == "reduce") return r == bench.problem.root ? wrong_sums(everything) : 0;
  if (candidate.collective == "broadcast") return wrong_copies(bench.problem.root, everything);
  std::int64_t wrong = 0;
  for (int q = 0; q < N && candidate.collective == "all-gather"; ++q) wrong += wrong_copies(q, partition.shard(q));
  return wrong;
}

/// Median time of several calls, each timed by the slowest rank.
double time_calls(Bench& bench, const Candidate& candidate, const Tensor& values, Group& group, int repeats)
{
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    bench.stream->copy(values, bench.own.tensor());
    bench.stream->synchronise();
    check_mpi(MPI_Barrier(bench.all.handle()), "beginning together");
    const auto span = bench.time.span(Work::exposed, candidate.name());
    const Stopwatch clock;
    make(candidate, values, bench.problem.root, group);
    bench.stream->synchronise();
    times.push_back(clock.seconds());
  }
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, times.data(), repeats, MPI_DOUBLE, MPI_MAX, bench.all.handle()),
            "looking for the slowest rank");
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[static_cast<std::size_t>(repeats / 2)];
}

void compare_sums(Findings& findings, const Bench& bench, const Tensor& result)
{
  findings.digest = digest_of(result);
  std::string first = findings.digest;
  check_mpi(MPI_Bcast(first.data(), static_cast<int>(first.size()), MPI_CHAR, 0, bench.all.handle()),
            "comparing the results of all ranks");
  findings.same_bits = sum_of(of_all_ranks(findings.digest != first, bench.all)) == 0;
  findings.from_rank_order = difference(result, bench.by_rank.tensor());
  findings.from_tree = difference(result, bench.by_tree.tensor());
}

}  // namespace

Findings measure(Bench& bench, const Candidate& candidate, const AlphaBeta& line, int repeats)
{
  const int N = bench.all.ranks();
  constexpr int most_marked = 8;
  Findings findings;
  findings.candidate = candidate;
  if (candidate.sends() && 1 < N && N <= most_marked) findings.steps = record_steps(bench, candidate);

  const std::unique_ptr<Group> group = bench.make_group(candidate);
  const Buffer buffer(group->often_reduced(), Category::workspace, bench.problem.type, {bench.problem.n}, "values");
  const Tensor values = buffer.tensor();
  bench.stream->copy(values, bench.own.tensor());
  const auto events = record(bench, candidate, values, *group);
  if (candidate.sends() && N > 1) findings.predicted_s = play(events, line).end_s;

  const Traffic sent = bench.traffic.total();
  const auto messages = of_all_ranks(sent.messages, bench.all), bytes = of_all_ranks(sent.bytes, bench.all),
             read_bytes = of_all_ranks(sent.read_bytes, bench.all);
  findings.scratch = of_all_ranks(bench.ledger.current(Tier::device)[Category::communication], bench.all);
  findings.algorithm =
      chosen_algorithm(group->algorithm(), group->topology(), candidate.collective, values.bytes());
  for (int r = 0; r < N; ++r) {
    const auto at = static_cast<std::size_t>(r);
    findings.sent.push_back({messages[at], bytes[at], read_bytes[at]});
    findings.formula.push_back(traffic_formula(candidate, findings.algorithm, bench.problem, group->topology(), r));
    findings.scratch_formula.push_back(
        scratch_formula(candidate, findings.algorithm, bench.problem, group->topology(), r));
  }
  const Buffer result(bench.host, Category::workspace, bench.problem.type, {bench.problem.n}, "result");
  bench.stream->copy(result.tensor(), values);
  bench.stream->synchronise();
  findings.wrong = sum_of(of_all_ranks(wrong_elements(bench, candidate, result.tensor()), bench.all));
  if (candidate.collective == "all-reduce") compare_sums(findings, bench, result.tensor());
  findings.time_s = time_calls(bench, candidate, values, *group, repeats);
  return findings;
}

}  // namespace rankwise
