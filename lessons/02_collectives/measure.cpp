#include "lessons/02_collectives/measure.hpp"

#include "common/base/digest.hpp"
#include "common/base/partition.hpp"
#include "common/collectives/collectives.hpp"
#include "common/collectives/cost.hpp"
#include "common/collectives/pairwise.hpp"
#include "common/messages/job_report.hpp"
#include "lessons/02_collectives/naive_all_reduce.hpp"
#include "lessons/02_collectives/textbook_ring.hpp"
#include "lessons/frame/instruments/fit.hpp"

namespace rankwise {

// ---- Candidates ----

std::string Candidate::way() const
{
  if (algorithm == "auto") return "chosen by size and topology";
  if (algorithm == "pairwise") return "a block to each rank, one after the other";
  if (algorithm == "bruck") return "log2 N messages, by way of other ranks";
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
  if (algorithm == "pairwise") return Algorithm::pairwise;
  if (algorithm == "bruck") return Algorithm::bruck;
  return Algorithm::ring;  // the algorithms of this lesson only need send and receive
}

bool Candidate::exists() const
{
  if (written_here()) return collective == "all-reduce";
  if (algorithm == "pairwise") return moves_blocks();
  if (algorithm == "bruck") return collective == "all-to-all";
  return !moves_blocks() || algorithm == "library" || algorithm == "auto";
}

std::vector<std::int64_t> Candidate::blocks(std::int64_t n, int ranks, int rank) const
{
  return collective == "all-to-all" ? std::vector<std::int64_t>(static_cast<std::size_t>(ranks), n / ranks)
                                    : uneven_blocks(n, ranks, rank);
}

void make(const Candidate& candidate, const Tensor& values, const Tensor& received, int root, Group& group)
{
  if (candidate.algorithm == "naive") return naive_all_reduce_sum(values, group);
  if (candidate.algorithm == "textbook-ring") return textbook_ring_all_reduce_sum(values, group);
  if (candidate.collective == "reduce-scatter") reduce_scatter_sum(values, group);
  if (candidate.collective == "all-gather") all_gather(values, group);
  if (candidate.collective == "all-reduce") all_reduce_sum(values, group);
  if (candidate.collective == "broadcast") broadcast(values, root, group);
  if (candidate.collective == "reduce") reduce_sum(values, root, group);
  if (candidate.collective == "barrier") barrier(group);
  if (candidate.collective == "all-to-all") all_to_all(values, received, group);
  if (candidate.collective == "all-to-all-v") {
    const std::vector<std::int64_t> counts = candidate.blocks(values.elements(), group.ranks(), group.rank());
    all_to_all_v(values, counts, received, counts, group);
  }
}

RankCost cost_of(const Candidate& candidate, const CollectiveOptions& o, const Topology& topology, int rank)
{
  const int N = static_cast<int>(topology.node_of.size());
  const std::int64_t bytes = o.count * bytes_of(o.type);
  if (candidate.algorithm == "naive") return {naive_cost(bytes, N, rank, {}).sent, rank == 0 && N > 1 ? bytes : 0};
  if (candidate.algorithm == "textbook-ring")
    return {textbook_ring_traffic(o.count, o.type, N, rank), textbook_ring_scratch(o.count, o.type, N, rank)};
  CollectiveShape call{candidate.collective, candidate.of_group(), o.type, o.count, o.root};
  if (candidate.collective == "all-to-all-v") call.counts = candidate.blocks(o.count, N, rank);
  return {expected_traffic(call, topology, rank), scratch_bytes({call}, topology, rank)};
}

// ---- Bench ----

Bench::Bench(const CollectiveOptions& o) : options(o)
{
  fill(own.tensor(), all.rank());
  if (o.type != DType::u8) sum_of_ranks(by_rank.tensor(), by_tree.tensor(), all.ranks());
}

std::unique_ptr<Group> Bench::make_group(const Candidate& candidate)
{
  traffic.clear();
  const GroupSetup setup{.memory = memory,
                         .stream = stream.get(),
                         .traffic = &traffic,
                         .algorithm = candidate.of_group(),
                         .ranks_per_node = options.ranks_per_node,
                         .check_messages = options.check_messages,
                         .log = &log,
                         .nccl = carrier.nccl};
  return std::make_unique<Group>("world", all.split(0, all.rank()), setup);
}

Buffer Bench::vector(const std::string& what) const
{
  return {host, Category::workspace, options.type, {options.count}, what};
}

// ---- Measure ----

namespace {

/// Records the messages of one call.
/// @return  events of all ranks.
std::vector<std::vector<MessageLog::Event>> record(Bench& bench, const Candidate& candidate, const Tensor& values,
                                                   const Tensor& received, Group& group)
{
  bench.log.events.clear();
  bench.log.recording = true;
  make(candidate, values, received, bench.options.root, group);
  bench.log.recording = false;
  return gather_events(bench.log.events, bench.all);
}

/// Steps of the collective, recorded with a vector of N marked_shard() elements. Those of an all-to-all have the rank
/// that their block is for in place of the shard.
TransferSchedule record_steps(Bench& bench, const Candidate& candidate)
{
  const int N = bench.all.ranks();
  const bool sums = candidate.collective.find("reduce") != std::string::npos;
  const std::unique_ptr<Group> group = bench.make_group(candidate);
  const Buffer values(bench.memory, Category::workspace, DType::i64, {N}, "marked shards");
  const Buffer received(bench.memory, Category::workspace, DType::i64, {N}, "received blocks");
  const std::vector<std::int64_t> counts =
      candidate.moves_blocks() ? candidate.blocks(N, N, bench.all.rank()) : std::vector<std::int64_t>(N, 1);
  std::vector<std::int64_t> marked;
  for (int s = 0; s < N; ++s)
    marked.insert(marked.end(), static_cast<std::size_t>(counts[static_cast<std::size_t>(s)]),
                  marked_shard(s, bench.all.rank()));
  bench.stream->copy(values.tensor(), Tensor(std::span(marked), {N}));
  bench.log.describe = [&bench, &candidate, N, sums](const Tensor& message) {
    if (message.type() != DType::i64) return std::string();  // a byte of a barrier
    std::vector<std::int64_t> there = to_host<std::int64_t>(*bench.stream, message);
    const Tensor on_host(std::span<std::int64_t>(there), message.shape());
    return candidate.moves_blocks() ? describe_blocks(on_host) : describe_shards(on_host, N, sums);
  };
  TransferSchedule steps = play(record(bench, candidate, values.tensor(), received.tensor(), *group), {1, 0});
  bench.log.describe = nullptr;
  return steps;
}

/// Number of wrong elements in this rank's result.
std::int64_t wrong_elements(const Bench& bench, const Candidate& candidate, const Tensor& result)
{
  const CollectiveOptions& o = bench.options;
  const int N = bench.all.ranks(), r = bench.all.rank();
  const Partition partition(o.count, N);
  const std::string& collective = candidate.collective;
  const bool sums = collective.find("reduce") != std::string::npos;
  // The elements that this rank has to have, and their values: sums, or copies of what other ranks had.
  Range where{0, o.count};
  if (collective == "reduce-scatter") where = partition.shard(r);
  if (collective == "barrier" || (collective == "reduce" && r != o.root)) where = {};
  const Buffer copies = sums ? Buffer() : bench.vector("what was sent");
  if (collective == "broadcast") fill(copies.tensor(), o.root);
  for (int q = 0; q < N && collective == "all-gather"; ++q)
    fill(copies.tensor().slice(partition.shard(q)), q, partition.shard(q).first);
  std::int64_t stored = 0;  // elements of the blocks that this rank has from ranks before q
  for (int q = 0; q < N && candidate.moves_blocks(); ++q) {
    const Range block = blocks_of(candidate.blocks(o.count, N, q))[static_cast<std::size_t>(r)];
    fill(copies.tensor().slice({stored, block.count}), q, block.first);
    stored += block.count;
  }
  const Tensor right = sums ? bench.by_tree.tensor() : copies.tensor();
  const Difference found = difference(result.slice(where), right.slice(where));
  return found.largest <= (sums ? rounding_bound(o.type, N) : 0) ? 0 : found.elements;
}

/// Median time of several calls, each timed by the slowest rank.
double time_calls(Bench& bench, const Candidate& candidate, const Tensor& values, const Tensor& received,
                  Group& group)
{
  std::vector<double> times;
  for (int i = 0; i < bench.options.repeats; ++i) {
    bench.stream->copy(values, bench.own.tensor());
    bench.stream->synchronise();
    check_mpi(MPI_Barrier(bench.all.handle()), "beginning together");
    const auto span = bench.time.span(Work::exposed, candidate.name());
    const Stopwatch clock;
    make(candidate, values, received, bench.options.root, group);
    bench.stream->synchronise();
    times.push_back(clock.seconds());
  }
  check_mpi(
      MPI_Allreduce(MPI_IN_PLACE, times.data(), bench.options.repeats, MPI_DOUBLE, MPI_MAX, bench.all.handle()),
      "looking for the slowest rank");
  return median(times);
}

/// Compares the results of all ranks, and this rank's with the sums that it has computed.
void compare_results(Findings& findings, const Bench& bench, const Tensor& result)
{
  findings.wrong = wrong_elements(bench, findings.candidate, result);
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &findings.wrong, 1, MPI_INT64_T, MPI_SUM, bench.all.handle()),
            "counting wrong elements");
  if (findings.candidate.collective != "all-reduce") return;
  findings.hash = fast_hash({result.raw(), static_cast<std::size_t>(result.bytes())});
  std::uint64_t first = findings.hash;
  check_mpi(MPI_Bcast(&first, 1, MPI_UINT64_T, 0, bench.all.handle()), "comparing the results of all ranks");
  findings.same_bits = on_all_ranks(findings.hash == first);
  findings.from_rank_order = difference(result, bench.by_rank.tensor());
  findings.from_tree = difference(result, bench.by_tree.tensor());
}

}  // namespace

Findings measure(Bench& bench, const Candidate& candidate, const AlphaBeta& line)
{
  const int N = bench.all.ranks();
  constexpr int most_marked = 8;
  Findings findings;
  findings.candidate = candidate;
  if (candidate.sends() && 1 < N && N <= most_marked) findings.steps = record_steps(bench, candidate);

  const std::unique_ptr<Group> group = bench.make_group(candidate);
  const Buffer buffer(group->often_reduced(), Category::workspace, bench.options.type, {bench.options.count},
                      "values");
  const Tensor values = buffer.tensor();
  const Buffer blocks(bench.memory, Category::workspace, bench.options.type,
                      {candidate.moves_blocks() ? bench.options.count : 0}, "received blocks");
  bench.stream->copy(values, bench.own.tensor());
  const auto events = record(bench, candidate, values, blocks.tensor(), *group);
  if (candidate.sends() && N > 1) findings.predicted_s = play(events, line).end_s;

  findings.algorithm = chosen_algorithm(group->algorithm(), bench.topology, candidate.collective, values.bytes());
  const RankCost own{bench.traffic.total(), bench.ledger.current(Tier::device)[Category::communication]};
  findings.measured = gather_all(own, bench.all.handle(), "comparing the ranks' numbers");
  for (int r = 0; r < N; ++r) findings.formula.push_back(cost_of(candidate, bench.options, bench.topology, r));

  const Buffer result = bench.vector("result");
  bench.stream->copy(result.tensor(), candidate.moves_blocks() ? blocks.tensor() : values);
  bench.stream->synchronise();
  compare_results(findings, bench, result.tensor());
  findings.time_s = time_calls(bench, candidate, values, blocks.tensor(), *group);
  return findings;
}

}  // namespace rankwise
