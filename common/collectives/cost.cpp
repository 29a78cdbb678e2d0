#include "common/collectives/cost.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/base/partition.hpp"
#include "common/collectives/chain.hpp"
#include "common/collectives/halving.hpp"
#include "common/collectives/hierarchical.hpp"
#include "common/collectives/ring.hpp"
#include "common/collectives/shared.hpp"
#include "common/collectives/subtrees.hpp"

namespace rankwise {

namespace {

/// One rank of a group, as the formulas need it.
struct Caller {
  std::int64_t n;  // number of elements
  std::int64_t s;  // bytes per element
  int N, r, root;

  Range shard(int rank) const { return Partition(n, N).shard(rank); }
  int counted_from_root() const { return (r - root + N) % N; }
  /// Traffic of one message, or of none if it has no elements.
  Traffic message(std::int64_t elements) const { return {.messages = elements > 0 ? 1 : 0, .bytes = s * elements}; }
  /// Traffic of elements sent in messages of at most @p longest bytes.
  Traffic messages(std::int64_t elements, std::int64_t longest) const
  {
    const std::int64_t most = longest / s;
    return {.messages = (elements + most - 1) / most, .bytes = s * elements};
  }
};

int steps_of_doubling(int N)
{
  return std::bit_width(static_cast<unsigned>(N - 1));
}

// ---- Rings ----

/// A reduce-scatter on a ring sends all shards but its own, an all-gather all but the next rank's, with separate messages
/// for each range.
Traffic ring_traffic(bool gather, const std::vector<Share>& shares, int rank, const Caller& c)
{
  const int ranks = static_cast<int>(shares.size());
  Traffic sum;
  for (int q = 0; q < ranks; ++q)
    for (const Range& piece : shares[static_cast<std::size_t>(q)])
      if (q != (gather ? (rank + 1) % ranks : rank)) sum += c.messages(piece.count, ring_message_bytes);
  return sum;
}

/// Scratch for the messages that a reduce-scatter has in flight at a time.
std::int64_t ring_scratch(const std::vector<Share>& shares, int rank, const Caller& c)
{
  const int ranks = static_cast<int>(shares.size());
  std::int64_t most = 0;
  for (int q = 0; q < ranks; ++q)
    for (const Range& piece : shares[static_cast<std::size_t>(q)])
      if (q != (rank + ranks - 1) % ranks) most = std::max(most, std::min(piece.count, ring_message_bytes / c.s));
  return ranks > 1 ? ring_messages * most * c.s : 0;
}

/// Traffic of a ring of all ranks, whose shards have one of two sizes: a dry run asks for it of every rank of
/// thousands.
Traffic ring_traffic(bool gather, const Caller& c)
{
  const auto messages_of = [&](std::int64_t elements) { return c.messages(elements, ring_message_bytes).messages; };
  const std::int64_t each = c.n / c.N, larger = c.n % c.N, left_out = c.shard(gather ? (c.r + 1) % c.N : c.r).count;
  return {.messages = larger * messages_of(each + 1) + (c.N - larger) * messages_of(each) - messages_of(left_out),
          .bytes = c.s * (c.n - left_out)};
}

/// Scratch of a ring of all ranks. The first shard is the largest; rank 1 never receives it.
std::int64_t ring_scratch(const Caller& c)
{
  return c.N > 1 ? c.s * ring_messages * std::min(c.shard(c.r == 1 ? 1 : 0).count, ring_message_bytes / c.s) : 0;
}

// ---- Halving and doubling ----

/// Number of elements of the shards that equal @p rank modulo P modulo @p distance.
std::int64_t elements_of_class(int rank, int distance, const Caller& c)
{
  std::int64_t elements = 0;
  for (int q = 0; q < c.N; ++q)
    if (q % power_below(c.N) % distance == rank % distance) elements += c.shard(q).count;
  return elements;
}

Traffic halving_traffic(const Caller& c)
{
  const int P = power_below(c.N);
  if (c.r >= P) return c.message(c.n);
  Traffic sum;
  for (int distance = 1; distance < P; distance *= 2)
    sum += c.message(elements_of_class(c.r ^ distance, 2 * distance, c));
  if (c.r + P < c.N) sum += c.message(c.shard(c.r + P).count);
  return sum;
}

Traffic doubling_traffic(const Caller& c)
{
  const int P = power_below(c.N);
  if (c.r >= P) return c.message(c.shard(c.r).count);
  Traffic sum;
  for (int distance = 1; distance < P; distance *= 2) sum += c.message(elements_of_class(c.r, 2 * distance, c));
  if (c.r + P < c.N) sum += c.message(c.n);
  return sum;
}

Traffic doubling_all_reduce_traffic(const Caller& c)
{
  const int P = power_below(c.N);
  if (c.r >= P) return c.message(c.n);
  Traffic sum;
  for (int distance = 1; distance < P; distance *= 2) sum += c.message(c.n);
  if (c.r + P < c.N) sum += c.message(c.n);
  return sum;
}

/// Scratch of the largest step: shards that two ranks exchange, or all values of the rank that this one acts for.
std::int64_t halving_scratch(bool reduces, const Caller& c)
{
  const int P = power_below(c.N);
  if (c.r >= P) return 0;
  std::int64_t most = reduces && c.r + P < c.N ? c.n : 0;
  for (int distance = 1; distance < P; distance *= 2)
    most = std::max(most,
                    elements_of_class(c.r, 2 * distance, c) + elements_of_class(c.r ^ distance, 2 * distance, c));
  return c.s * most;
}

// ---- Subtrees ----

/// True if the ranks exchange subtrees, because their sums are not branches of one balanced tree.
bool exchanges_subtrees(const CollectiveShape& shape, const Caller& c)
{
  return !DealtLeaves(shape.leaves, c.N).are_balanced();
}

Traffic subtree_traffic(const CollectiveShape& shape, const Caller& c)
{
  Traffic sum;
  for (std::size_t k = 0; k < DealtLeaves(shape.leaves, c.N).runs_of(c.r).size(); ++k)
    for (int q = 0; q < c.N; ++q)
      if (q != c.r) sum += c.message(c.shard(q).count);
  return sum;
}

/// Scratch for this rank's shard of the subtrees of all ranks.
std::int64_t subtree_scratch(const CollectiveShape& shape, const Caller& c)
{
  std::int64_t subtrees = 0;
  for (int q = 0; q < c.N; ++q) subtrees += std::ssize(DealtLeaves(shape.leaves, c.N).runs_of(q));
  return c.s * subtrees * c.shard(c.r).count;
}

// ---- Trees and chains ----

Traffic binomial_broadcast_traffic(const Caller& c)
{
  Traffic sum;
  for (int distance = 1; distance < c.N; distance *= 2)
    if (c.counted_from_root() < distance && c.counted_from_root() + distance < c.N) sum += c.message(c.n);
  return sum;
}

Traffic binomial_reduce_traffic(const Caller& c)
{
  return c.counted_from_root() == 0 ? Traffic{} : c.message(c.n);
}

/// Scratch of a rank that has a child in the tree.
std::int64_t binomial_reduce_scratch(const Caller& c)
{
  const bool child = c.counted_from_root() % 2 == 0 && c.counted_from_root() + 1 < c.N;
  return child ? c.n * c.s : 0;
}

Traffic tree_traffic(std::string_view collective, const Caller& c)
{
  Traffic sum;
  if (collective == "all-gather") {
    sum = binomial_broadcast_traffic(c);
    if (c.r != 0) sum += c.message(c.shard(c.r).count);
    return sum;
  }
  sum = binomial_reduce_traffic(c);
  if (collective == "all-reduce") return sum += binomial_broadcast_traffic(c);
  for (int q = 1; q < c.N && c.r == 0; ++q) sum += c.message(c.shard(q).count);
  return sum;
}

Traffic chain_traffic(const Caller& c)
{
  return c.counted_from_root() + 1 < c.N ? c.messages(c.n, chain_message_bytes) : Traffic{};
}

// ---- Two levels ----

/// A rank of a two-level group: its part at each level, and the shards there.
struct Levels {
  Caller inside, between;
  LevelShares shares;

  /// True if the root is in the rank's column.
  bool in_column() const { return inside.r == inside.root; }
};

Levels levels_of(const Topology& topology, const Caller& c)
{
  const auto node_of = [&](int rank) { return topology.node_of[static_cast<std::size_t>(rank)]; };
  return {{c.n, c.s, topology.ranks_per_node(), topology.place_of(c.r), topology.place_of(c.root)},
          {c.n, c.s, topology.nodes, node_of(c.r), node_of(c.root)},
          level_shares_of(c.n, topology, c.r)};
}

Traffic hierarchical_traffic(std::string_view collective, const Topology& topology, const Caller& c)
{
  const Levels levels = levels_of(topology, c);
  if (collective == "broadcast" || collective == "reduce") {
    const auto traffic = collective == "reduce" ? binomial_reduce_traffic : binomial_broadcast_traffic;
    Traffic sum = traffic(levels.inside);
    if (levels.in_column()) sum += traffic(levels.between);
    return sum;
  }
  Traffic sum;
  for (const bool gather : {false, true}) {
    if (collective == (gather ? "reduce-scatter" : "all-gather")) continue;
    sum += ring_traffic(gather, levels.shares.inside, levels.inside.r, c);
    sum += ring_traffic(gather, levels.shares.between, levels.between.r, c);
  }
  return sum;
}

ScratchBytes hierarchical_scratch(std::string_view collective, const Topology& topology, const Caller& c)
{
  const Levels levels = levels_of(topology, c);
  if (collective == "reduce")
    return {.inside = binomial_reduce_scratch(levels.inside),
            .between = levels.in_column() ? binomial_reduce_scratch(levels.between) : 0};
  return {.inside = ring_scratch(levels.shares.inside, levels.inside.r, c),
          .between = ring_scratch(levels.shares.between, levels.between.r, c)};
}

// ---- All-to-all ----

Traffic pairwise_traffic(const std::vector<std::int64_t>& counts, const Caller& c)
{
  Traffic sum;
  for (int q = 0; q < c.N; ++q)
    if (q != c.r) sum += c.message(counts[static_cast<std::size_t>(q)]);
  return sum;
}

/// In the step of distance d all blocks whose number has bit d are sent, in one message.
Traffic bruck_traffic(const Caller& c)
{
  Traffic sum;
  for (int distance = 1; distance < c.N; distance *= 2) {
    int blocks = 0;
    for (int i = 0; i < c.N; ++i) blocks += (i & distance) != 0 ? 1 : 0;
    sum += c.message(blocks * (c.n / c.N));
  }
  return sum;
}

Traffic all_to_all_traffic(const CollectiveShape& shape, const Caller& c)
{
  if (shape.algorithm == Algorithm::bruck) return bruck_traffic(c);
  if (shape.collective == "all-to-all-v") return pairwise_traffic(shape.counts, c);
  return pairwise_traffic(std::vector<std::int64_t>(static_cast<std::size_t>(c.N), c.n / c.N), c);
}

// ---- Algorithms that send no messages themselves ----

Traffic library_traffic(std::string_view collective, const Caller& c)
{
  if (collective == "barrier" || (collective == "broadcast" && c.r != c.root)) return {};
  return {.bytes = c.s * (collective == "all-gather" ? c.shard(c.r).count : c.n)};
}

Traffic shared_traffic(std::string_view collective, const Caller& c)
{
  const std::int64_t scattered = (c.N - 1) * c.shard(c.r).count;  // elements of its shard on the other ranks
  const std::int64_t gathered = c.n - c.shard(c.r).count;         // elements of the other ranks' shards
  const auto read = [&](std::int64_t elements) { return Traffic{.read_bytes = c.s * elements}; };
  if (collective == "broadcast") return read(c.r == c.root ? 0 : c.n);
  if (collective == "reduce") return read(scattered + (c.r == c.root ? gathered : 0));
  if (collective == "reduce-scatter") return read(scattered);
  if (collective == "all-gather") return read(gathered);
  if (collective == "barrier") return {};
  return c.s * c.n <= shared_whole_bytes ? read((c.N - 1) * c.n) : read(scattered + gathered);
}

Caller caller_of(const CollectiveShape& shape, const Topology& topology, int rank)
{
  const bool has_root = shape.collective == "broadcast" || shape.collective == "reduce";
  const std::int64_t n =
      std::accumulate(shape.counts.begin(), shape.counts.end(), shape.counts.empty() ? shape.count : 0);
  return {n, bytes_of(shape.type), static_cast<int>(topology.node_of.size()), rank, has_root ? shape.root : 0};
}

/// The call with `auto` resolved.
CollectiveShape chosen(CollectiveShape shape, const Topology& topology)
{
  shape.algorithm =
      chosen_algorithm(shape.algorithm, topology, shape.collective, shape.count * bytes_of(shape.type));
  return shape;
}

bool summed_whole(const CollectiveShape& shape, const Caller& c)
{
  return shape.collective == "all-reduce" && c.n * c.s <= doubling_bytes;
}

}  // namespace

Traffic expected_traffic(const CollectiveShape& asked, const Topology& topology, int rank)
{
  const CollectiveShape shape = chosen(asked, topology);
  const Caller c = caller_of(shape, topology, rank);
  const std::string_view collective = shape.collective;
  if (exchanges_subtrees(shape, c)) {
    Traffic sum = subtree_traffic(shape, c);
    if (collective == "all-reduce") sum += doubling_traffic(c);
    return sum;
  }
  if (shape.algorithm == Algorithm::library) return library_traffic(collective, c);
  if (collective.starts_with("all-to-all")) return all_to_all_traffic(shape, c);
  if (shape.algorithm == Algorithm::shared) return shared_traffic(collective, c);
  if (collective == "barrier") return {.messages = steps_of_doubling(c.N), .bytes = steps_of_doubling(c.N)};
  if (shape.algorithm == Algorithm::hierarchical) return hierarchical_traffic(collective, topology, c);
  if (collective == "broadcast")
    return shape.algorithm == Algorithm::ring ? chain_traffic(c) : binomial_broadcast_traffic(c);
  if (collective == "reduce") return binomial_reduce_traffic(c);
  if (shape.algorithm == Algorithm::tree) return tree_traffic(collective, c);
  if (shape.algorithm == Algorithm::halving && summed_whole(shape, c)) return doubling_all_reduce_traffic(c);

  const bool halving = shape.algorithm == Algorithm::halving;
  Traffic sum;
  if (collective != "all-gather") sum += halving ? halving_traffic(c) : ring_traffic(false, c);
  if (collective != "reduce-scatter") sum += halving ? doubling_traffic(c) : ring_traffic(true, c);
  return sum;
}

ScratchBytes scratch_by_level(const CollectiveShape& asked, const Topology& topology, int rank)
{
  const CollectiveShape shape = chosen(asked, topology);
  const Caller c = caller_of(shape, topology, rank);
  const std::string_view collective = shape.collective;
  if (exchanges_subtrees(shape, c)) {
    const std::int64_t gather = collective == "all-reduce" ? halving_scratch(false, c) : 0;
    return {std::max(subtree_scratch(shape, c), gather)};
  }
  if (collective.starts_with("all-to-all")) return {shape.algorithm == Algorithm::bruck ? c.n * c.s : 0};
  if (shape.algorithm == Algorithm::shared) return {};
  if (shape.algorithm == Algorithm::library)
    return {collective == "reduce-scatter" && topology.device == DeviceKind::cpu ? c.shard(rank).count * c.s : 0};
  if (collective == "barrier") return {2};
  if (collective == "broadcast") return {};
  if (shape.algorithm == Algorithm::hierarchical)
    return collective == "all-gather" ? ScratchBytes{} : hierarchical_scratch(collective, topology, c);
  const bool tree = shape.algorithm == Algorithm::tree;
  if (collective == "reduce" || (tree && collective != "all-gather")) return {binomial_reduce_scratch(c)};
  if (tree) return {};
  if (shape.algorithm == Algorithm::ring) return {collective == "all-gather" ? 0 : ring_scratch(c)};
  if (summed_whole(shape, c)) return {c.N > 1 && rank < power_below(c.N) ? c.n * c.s : 0};
  return {halving_scratch(collective != "all-gather", c)};
}

Traffic expected_traffic(const std::vector<CollectiveShape>& calls, const Topology& topology, int rank)
{
  Traffic sum;
  for (const CollectiveShape& call : calls) sum += call.times * expected_traffic(call, topology, rank);
  return sum;
}

std::int64_t scratch_bytes(const std::vector<CollectiveShape>& calls, const Topology& topology, int rank)
{
  ScratchBytes most;
  for (const CollectiveShape& call : calls) {
    const ScratchBytes one = scratch_by_level(call, topology, rank);
    most = {std::max(most.own, one.own), std::max(most.inside, one.inside), std::max(most.between, one.between)};
  }
  return most.own + most.inside + most.between;
}

}  // namespace rankwise
