#include "common/collectives/collectives.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/collectives/binomial.hpp"
#include "common/collectives/bruck.hpp"
#include "common/collectives/chain.hpp"
#include "common/collectives/dissemination.hpp"
#include "common/collectives/halving.hpp"
#include "common/collectives/hierarchical.hpp"
#include "common/collectives/library.hpp"
#include "common/collectives/pairwise.hpp"
#include "common/collectives/ring.hpp"
#include "common/collectives/shared.hpp"
#include "common/collectives/subtrees.hpp"

namespace rankwise {

namespace {

/// Picks the algorithm of a collective call and announces the call to the layers.
struct CollectiveCall {
  CollectiveCall(Group& group, std::string_view name, const Tensor& values, int root, SourceLocation where)
      : algorithm(chosen_algorithm(group.algorithm(), group.topology(), name, values.bytes())),
        scope(group, {name, name_of(algorithm), values.type(), values.elements(), root, where})
  {
    check(0 <= root && root < group.ranks(), fmt::format("rank {} of {} cannot be the root", root, group.ranks()),
          where);
  }

  Algorithm algorithm;
  CollectiveScope scope;
};

void ring_reduce_scatter(const Tensor& values, Group& group)
{
  ring_reduce_scatter_sum(values, shards_of(values.elements(), group.ranks()), group);
}

void ring_gather(const Tensor& values, Group& group)
{
  ring_all_gather(values, shards_of(values.elements(), group.ranks()), group);
}

void tree_all_reduce(const Tensor& values, Group& group)
{
  binomial_reduce_sum(values, 0, group);
  binomial_broadcast(values, 0, group);
}

void halving_all_reduce(const Tensor& values, Group& group)
{
  if (values.bytes() <= doubling_bytes) return doubling_all_reduce_sum(values, group);
  halving_reduce_scatter_sum(values, group);
  doubling_all_gather(values, group);
}

void shared_barrier(Group& group)
{
  group.shared().barrier();
}

/// The functions of an algorithm; those of most are the default.
struct Functions {
  void (*reduce_scatter)(const Tensor&, Group&) = ring_reduce_scatter;
  void (*all_gather)(const Tensor&, Group&) = ring_gather;
  void (*all_reduce)(const Tensor&, Group&) = nullptr;  // null: a reduce-scatter, then an all-gather
  void (*broadcast)(const Tensor&, int root, Group&) = binomial_broadcast;
  void (*reduce)(const Tensor&, int root, Group&) = binomial_reduce_sum;
  void (*barrier)(Group&) = dissemination_barrier;
};

Functions functions_of(Algorithm algorithm)
{
  switch (algorithm) {
    case Algorithm::ring:
      return {.broadcast = chain_broadcast};
    case Algorithm::tree:
      return {
          .reduce_scatter = tree_reduce_scatter_sum, .all_gather = tree_all_gather, .all_reduce = tree_all_reduce};
    case Algorithm::halving:
      return {.reduce_scatter = halving_reduce_scatter_sum,
              .all_gather = doubling_all_gather,
              .all_reduce = halving_all_reduce};
    case Algorithm::hierarchical:
      return {.reduce_scatter = hierarchical_reduce_scatter_sum,
              .all_gather = hierarchical_all_gather,
              .broadcast = hierarchical_broadcast,
              .reduce = hierarchical_reduce_sum};
    case Algorithm::shared:
      return {shared_reduce_scatter_sum, shared_all_gather, shared_all_reduce_sum,
              shared_broadcast,          shared_reduce_sum, shared_barrier};
    case Algorithm::library:
      return {library_reduce_scatter_sum, library_all_gather, library_all_reduce_sum,
              library_broadcast,          library_reduce_sum, library_barrier};
    default:
      return {};
  }
}

/// Blocks with these counts. Error unless they are blocks of all ranks and fill the vector.
Blocks checked_blocks(std::span<const std::int64_t> counts, const Tensor& values, const Group& group,
                      SourceLocation where)
{
  const Blocks blocks = blocks_of(counts);
  const bool negative = std::any_of(counts.begin(), counts.end(), [](std::int64_t count) { return count < 0; });
  check(std::ssize(blocks) == group.ranks() && !negative && blocks.back().end() == values.elements(),
        fmt::format("the counts {} do not divide {} elements among {} ranks", fmt::join(counts, ", "),
                    values.elements(), group.ranks()),
        where);
  return blocks;
}

}  // namespace

std::string describe_algorithm(const Group& group)
{
  const auto choice = [&](std::int64_t bytes) {
    return name_of(chosen_algorithm(group.algorithm(), group.topology(), "all-reduce", bytes));
  };
  if (group.algorithm() != Algorithm::automatic) return std::string(choice(0));
  if (choice(0) == choice(large_message))
    return fmt::format("auto: {}, because all ranks are on one node", choice(0));
  const int nodes = group.topology().nodes;
  return fmt::format("auto: {} below {} bytes and {} from there on, because the ranks are on {} node{}", choice(0),
                     large_message, choice(large_message), nodes, nodes == 1 ? "" : "s");
}

Range reduce_scatter_sum(const Tensor& values, Group& group, SourceLocation where)
{
  const CollectiveCall begun(group, "reduce-scatter", values, 0, where);
  functions_of(begun.algorithm).reduce_scatter(values, group);
  return Partition(values.elements(), group.ranks()).shard(group.rank());
}

void all_gather(const Tensor& values, Group& group, SourceLocation where)
{
  const CollectiveCall begun(group, "all-gather", values, 0, where);
  functions_of(begun.algorithm).all_gather(values, group);
}

void all_reduce_sum(const Tensor& values, Group& group, SourceLocation where)
{
  const CollectiveCall begun(group, "all-reduce", values, 0, where);
  const Functions functions = functions_of(begun.algorithm);
  if (functions.all_reduce != nullptr) return functions.all_reduce(values, group);
  functions.reduce_scatter(values, group);
  functions.all_gather(values, group);
}

Range reduce_scatter_sum(const PartialSum& sum, Group& group, SourceLocation where)
{
  const DealtLeaves leaves(group.leaves(), group.ranks());
  if (leaves.are_balanced()) return reduce_scatter_sum(sum.whole(), group, where);
  const Tensor& values = sum.subtrees.front();
  const CollectiveCall begun(group, "reduce-scatter", values, 0, where);
  subtree_reduce_scatter_sum(sum, leaves, group);
  return Partition(values.elements(), group.ranks()).shard(group.rank());
}

void all_reduce_sum(const PartialSum& sum, Group& group, SourceLocation where)
{
  const DealtLeaves leaves(group.leaves(), group.ranks());
  if (leaves.are_balanced()) return all_reduce_sum(sum.whole(), group, where);
  const Tensor& values = sum.subtrees.front();
  const CollectiveCall begun(group, "all-reduce", values, 0, where);
  subtree_reduce_scatter_sum(sum, leaves, group);
  functions_of(begun.algorithm).all_gather(values, group);
}

void all_reduce_sum(std::span<std::int64_t> numbers, Group& group, SourceLocation where)
{
  group.with_host_values(Tensor(numbers, {static_cast<std::int64_t>(numbers.size())}),
                         [&](const Tensor& values) { all_reduce_sum(values, group, where); });
}

void all_reduce_sum(ExactScalar& sum, Group& group, SourceLocation where)
{
  ExactScalar::Lanes lanes = sum.lanes();
  all_reduce_sum(std::span<std::int64_t>(lanes), group, where);
  sum = ExactScalar::from_lanes(lanes);
}

void all_reduce_sum(std::int64_t& number, Group& group, SourceLocation where)
{
  all_reduce_sum(std::span<std::int64_t>(&number, 1), group, where);
}

void broadcast(std::string& text, int root, Group& group, SourceLocation where)
{
  group.with_host_values(Tensor(text.data(), DType::u8, {static_cast<std::int64_t>(text.size())}),
                         [&](const Tensor& values) { broadcast(values, root, group, where); });
}

std::vector<std::int64_t> all_gather(std::int64_t number, Group& group, SourceLocation where)
{
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(group.ranks()));
  numbers[static_cast<std::size_t>(group.rank())] = number;
  group.with_host_values(Tensor(std::span<std::int64_t>(numbers), {group.ranks()}),
                         [&](const Tensor& values) { all_gather(values, group, where); });
  return numbers;
}

void broadcast(const Tensor& values, int root, Group& group, SourceLocation where)
{
  const CollectiveCall begun(group, "broadcast", values, root, where);
  functions_of(begun.algorithm).broadcast(values, root, group);
}

void reduce_sum(const Tensor& values, int root, Group& group, SourceLocation where)
{
  const CollectiveCall begun(group, "reduce", values, root, where);
  functions_of(begun.algorithm).reduce(values, root, group);
}

void all_to_all(const Tensor& sent, const Tensor& received, Group& group, SourceLocation where)
{
  const int N = group.ranks();
  check(sent.type() == received.type() && sent.elements() == received.elements() && sent.elements() % N == 0,
        fmt::format("an all-to-all of {} elements of {} into {} of {}: {} ranks exchange blocks of one size",
                    sent.elements(), name_of(sent.type()), received.elements(), name_of(received.type()), N),
        where);
  const CollectiveCall begun(group, "all-to-all", sent, 0, where);
  if (begun.algorithm == Algorithm::bruck) return bruck_all_to_all(sent, received, group);
  if (begun.algorithm == Algorithm::library) return library_all_to_all(sent, received, group);
  const Blocks blocks = blocks_of(std::vector<std::int64_t>(static_cast<std::size_t>(N), sent.elements() / N));
  pairwise_all_to_all(sent, blocks, received, blocks, group);
}

void all_to_all_v(const Tensor& sent, std::span<const std::int64_t> sent_counts, const Tensor& received,
                  std::span<const std::int64_t> received_counts, Group& group, SourceLocation where)
{
  const Blocks to = checked_blocks(sent_counts, sent, group, where);
  const Blocks from = checked_blocks(received_counts, received, group, where);
  const auto own = static_cast<std::size_t>(group.rank());
  check(sent.type() == received.type() && to[own].count == from[own].count,
        fmt::format("an all-to-all sends {} of {} to its own rank, which expects {} of {}", to[own].count,
                    name_of(sent.type()), from[own].count, name_of(received.type())),
        where);
  const Algorithm algorithm = chosen_algorithm(group.algorithm(), group.topology(), "all-to-all-v", 0);
  const CollectiveScope scope(group, {.name = "all-to-all-v",
                                      .algorithm = name_of(algorithm),
                                      .type = sent.type(),
                                      .where = where,
                                      .sent = sent_counts,
                                      .received = received_counts});
  if (algorithm == Algorithm::library) return library_all_to_all_v(sent, to, received, from, group);
  pairwise_all_to_all(sent, to, received, from, group);
}

std::vector<std::int64_t> all_to_all(std::span<const std::int64_t> numbers, Group& group, SourceLocation where)
{
  const int N = group.ranks();
  std::vector<std::int64_t> both(numbers.begin(), numbers.end());  // sent numbers, then received ones
  both.resize(2 * static_cast<std::size_t>(N));
  group.with_host_values(Tensor(std::span(both), {2 * N}), [&](const Tensor& values) {
    all_to_all(values.slice({0, N}), values.slice({N, N}), group, where);
  });
  return {both.begin() + N, both.end()};
}

void barrier(Group& group, SourceLocation where)
{
  const CollectiveCall begun(group, "barrier", {}, 0, where);
  functions_of(begun.algorithm).barrier(group);
}

void reserve_scratch(const CollectiveShape& call, Group& group)
{
  const auto [own, inside, between] = scratch_by_level(call, group.topology(), group.rank());
  group.scratch(DType::u8, own);
  if (inside > 0) group.inside().scratch(DType::u8, inside);
  if (between > 0) group.between().scratch(DType::u8, between);
}

}  // namespace rankwise
