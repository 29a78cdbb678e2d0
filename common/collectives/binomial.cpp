#include "common/collectives/binomial.hpp"

#include "common/base/partition.hpp"
#include "common/memory/element_sum.hpp"

namespace rankwise {

void binomial_broadcast(const Tensor& values, int root, Group& group)
{
  const int N = group.ranks();
  const int v = (group.rank() - root + N) % N;  // counted from the root
  const auto rank_of = [&](int counted) { return (counted + root) % N; };
  // BEGIN EXERCISE 02.2
  for (int distance = 1; distance < N; distance *= 2) {
    if (v < distance && v + distance < N)
      group.transport().send(values, rank_of(v + distance));
    else if (distance <= v && v < 2 * distance)
      group.transport().receive(values, rank_of(v - distance));
  }
  // END EXERCISE
}

void binomial_reduce_sum(const Tensor& values, int root, Group& group)
{
  check_summable(values.type());
  const int N = group.ranks();
  const int v = (group.rank() - root + N) % N;
  const auto rank_of = [&](int counted) { return (counted + root) % N; };
  for (int distance = 1; distance < N; distance *= 2) {
    if (v % (2 * distance) == distance) {
      group.transport().send(values, rank_of(v - distance));
      return;
    }
    if (v + distance < N) {
      const Tensor arrived = group.scratch(values.type(), values.elements());
      group.transport().receive(arrived, rank_of(v + distance));
      group.transport().stream().add(values, arrived);
    }
  }
}

void tree_reduce_scatter_sum(const Tensor& values, Group& group)
{
  binomial_reduce_sum(values, 0, group);
  const Partition partition(values.elements(), group.ranks());
  if (group.rank() != 0) {
    group.transport().receive(values.slice(partition.shard(group.rank())), 0);
    return;
  }
  for (int r = 1; r < group.ranks(); ++r) group.transport().send(values.slice(partition.shard(r)), r);
}

void tree_all_gather(const Tensor& values, Group& group)
{
  const Partition partition(values.elements(), group.ranks());
  if (group.rank() != 0)
    group.transport().send(values.slice(partition.shard(group.rank())), 0);
  else
    for (int r = 1; r < group.ranks(); ++r) group.transport().receive(values.slice(partition.shard(r)), r);
  binomial_broadcast(values, 0, group);
}

}  // namespace rankwise
