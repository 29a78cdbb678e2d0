#include "common/collectives/collectives.hpp"

#include <fmt/format.h>

#include "common/collectives/binomial.hpp"
#include "common/collectives/chain.hpp"
#include "common/collectives/dissemination.hpp"
#include "common/collectives/halving.hpp"
#include "common/collectives/hierarchical.hpp"
#include "common/collectives/library.hpp"
#include "common/collectives/ring.hpp"
#include "common/collectives/shared.hpp"

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

void make_reduce_scatter(Algorithm algorithm, const Tensor& values, Group& group)
{
  switch (algorithm) {
    case Algorithm::tree:
      return tree_reduce_scatter_sum(values, group);
    case Algorithm::halving:
      return halving_reduce_scatter_sum(values, group);
    case Algorithm::hierarchical:
      return hierarchical_reduce_scatter_sum(values, group);
    case Algorithm::shared:
      return shared_reduce_scatter_sum(values, group);
    case Algorithm::library:
      return library_reduce_scatter_sum(values, group);
    default:
      return ring_reduce_scatter_sum(values, shards_of(values.elements(), group.ranks()), group);
  }
}

void make_all_gather(Algorithm algorithm, const Tensor& values, Group& group)
{
  switch (algorithm) {
    case Algorithm::tree:
      return tree_all_gather(values, group);
    case Algorithm::halving:
      return doubling_all_gather(values, group);
    case Algorithm::hierarchical:
      return hierarchical_all_gather(values, group);
    case Algorithm::shared:
      return shared_all_gather(values, group);
    case Algorithm::library:
      return library_all_gather(values, group);
    default:
      return ring_all_gather(values, shards_of(values.elements(), group.ranks()), group);
  }
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
  make_reduce_scatter(begun.algorithm, values, group);
  return Partition(values.elements(), group.ranks()).shard(group.rank());
}

void all_gather(const Tensor& values, Group& group, SourceLocation where)
{
  const CollectiveCall begun(group, "all-gather", values, 0, where);
  make_all_gather(begun.algorithm, values, group);
}

void all_reduce_sum(const Tensor& values, Group& group, SourceLocation where)
{
  const CollectiveCall begun(group, "all-reduce", values, 0, where);
  switch (begun.algorithm) {
    case Algorithm::tree:
      binomial_reduce_sum(values, 0, group);
      return binomial_broadcast(values, 0, group);
    case Algorithm::halving:
      if (values.bytes() <= doubling_bytes) return doubling_all_reduce_sum(values, group);
      break;
    case Algorithm::shared:
      return shared_all_reduce_sum(values, group);
    case Algorithm::library:
      return library_all_reduce_sum(values, group);
    default:
      break;
  }
  make_reduce_scatter(begun.algorithm, values, group);
  make_all_gather(begun.algorithm, values, group);
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
  switch (begun.algorithm) {
    case Algorithm::ring:
      return chain_broadcast(values, root, group);
    case Algorithm::hierarchical:
      return hierarchical_broadcast(values, root, group);
    case Algorithm::shared:
      return shared_broadcast(values, root, group);
    case Algorithm::library:
      return library_broadcast(values, root, group);
    default:
      return binomial_broadcast(values, root, group);
  }
}

void reduce_sum(const Tensor& values, int root, Group& group, SourceLocation where)
{
  const CollectiveCall begun(group, "reduce", values, root, where);
  switch (begun.algorithm) {
    case Algorithm::hierarchical:
      return hierarchical_reduce_sum(values, root, group);
    case Algorithm::shared:
      return shared_reduce_sum(values, root, group);
    case Algorithm::library:
      return library_reduce_sum(values, root, group);
    default:
      return binomial_reduce_sum(values, root, group);
  }
}

void barrier(Group& group, SourceLocation where)
{
  const CollectiveCall begun(group, "barrier", {}, 0, where);
  switch (begun.algorithm) {
    case Algorithm::shared:
      return group.shared().barrier();
    case Algorithm::library:
      return library_barrier(group);
    default:
      return dissemination_barrier(group);
  }
}

void reserve_scratch(const CollectiveShape& call, Group& group)
{
  const auto [own, inside, between] = scratch_by_level(call, group.topology(), group.rank());
  group.scratch(DType::u8, own);
  if (inside > 0) group.inside().scratch(DType::u8, inside);
  if (between > 0) group.between().scratch(DType::u8, between);
}

}  // namespace rankwise
