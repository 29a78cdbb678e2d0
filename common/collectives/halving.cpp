#include "common/collectives/halving.hpp"

#include <algorithm>
#include <bit>
#include <vector>

#include "common/memory/element_sum.hpp"

namespace rankwise {

int power_below(int N)
{
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(N)));
}

namespace {

/// Numbers of shards of a Partition.
using Shards = std::vector<int>;

/// Shards for which rank @p r is responsible after all distances below @p distance: those with the same number
/// modulo P modulo distance.
Shards shards_of_rank(int r, int distance, int N)
{
  const int P = power_below(N);
  Shards shards;
  for (int s = 0; s < N; ++s)
    if ((s % P) % distance == r % distance) shards.push_back(s);
  return shards;
}

/// Total number of elements of the shards.
std::int64_t elements_of(const Shards& shards, const Partition& partition)
{
  std::int64_t n = 0;
  for (const int s : shards) n += partition.shard(s).count;
  return n;
}

/// Calls visit(range of the shard in the vector, range of the shard in a packed message) for each shard.
template <class Visit>
void for_each_shard(const Shards& shards, const Partition& partition, Visit&& visit)
{
  std::int64_t first = 0;
  for (const int s : shards) {
    const Range elements = partition.shard(s);
    if (!elements.empty()) visit(elements, Range{first, elements.count});
    first += elements.count;
  }
}

/// Exchanges shards with a peer through the group's scratch.
/// @return  the received shards, packed.
Tensor exchange_shards(const Tensor& values, const Shards& sent, const Shards& received, int peer, Group& group)
{
  const Partition partition(values.elements(), group.ranks());
  const std::int64_t out = elements_of(sent, partition), in = elements_of(received, partition);
  const Tensor scratch = group.scratch(values.type(), out + in);
  const Tensor packed = scratch.slice({0, out}), arrived = scratch.slice({out, in});
  for_each_shard(sent, partition, [&](Range elements, Range place) {
    group.transport().stream().copy(packed.slice(place), values.slice(elements));
  });
  group.transport().exchange(packed, peer, arrived, peer);
  return arrived;
}

}  // namespace

void halving_reduce_scatter_sum(const Tensor& values, Group& group)
{
  check_summable(values.type());
  Transport& transport = group.transport();
  Stream& stream = transport.stream();
  const int N = group.ranks(), r = group.rank(), P = power_below(N);
  const Partition partition(values.elements(), N);

  if (r >= P) {  // rank r - P acts for this one
    transport.send(values, r - P);
    transport.receive(values.slice(partition.shard(r)), r - P);
    return;
  }
  if (r + P < N) {
    const Tensor arrived = group.scratch(values.type(), values.elements());
    transport.receive(arrived, r + P);
    stream.add(values, arrived);
  }
  for (int distance = 1; distance < P; distance *= 2) {
    const int peer = r ^ distance;
    const Shards kept = shards_of_rank(r, 2 * distance, N), given = shards_of_rank(peer, 2 * distance, N);
    const Tensor arrived = exchange_shards(values, given, kept, peer, group);
    for_each_shard(kept, partition,
                   [&](Range elements, Range place) { stream.add(values.slice(elements), arrived.slice(place)); });
  }
  if (r + P < N) transport.send(values.slice(partition.shard(r + P)), r + P);
}

void doubling_all_gather(const Tensor& values, Group& group)
{
  Transport& transport = group.transport();
  const int N = group.ranks(), r = group.rank(), P = power_below(N);
  const Partition partition(values.elements(), N);

  if (r >= P) {
    transport.send(values.slice(partition.shard(r)), r - P);
    transport.receive(values, r - P);
    return;
  }
  if (r + P < N) transport.receive(values.slice(partition.shard(r + P)), r + P);
  for (int distance = P / 2; distance >= 1; distance /= 2) {
    const int peer = r ^ distance;
    const Shards own = shards_of_rank(r, 2 * distance, N), theirs = shards_of_rank(peer, 2 * distance, N);
    const Tensor arrived = exchange_shards(values, own, theirs, peer, group);
    for_each_shard(theirs, partition, [&](Range elements, Range place) {
      transport.stream().copy(values.slice(elements), arrived.slice(place));
    });
  }
  if (r + P < N) transport.send(values, r + P);
}

void doubling_all_reduce_sum(const Tensor& values, Group& group)
{
  check_summable(values.type());
  Transport& transport = group.transport();
  Stream& stream = transport.stream();
  const int N = group.ranks(), r = group.rank(), P = power_below(N);

  if (r >= P) {
    transport.send(values, r - P);
    transport.receive(values, r - P);
    return;
  }
  const Tensor arrived = group.scratch(values.type(), N > 1 ? values.elements() : 0);
  if (r + P < N) {
    transport.receive(arrived, r + P);
    stream.add(values, arrived);
  }
  for (int distance = 1; distance < P; distance *= 2) {
    transport.exchange(values, r ^ distance, arrived, r ^ distance);
    stream.add(values, arrived);
  }
  if (r + P < N) transport.send(values, r + P);
}

}  // namespace rankwise
