#include "common/collectives/halving.hpp"

#include <algorithm>
#include <bit>
#include <vector>

#include "common/memory/element_sum.hpp"

namespace rankwise {

namespace {

/// Segments of a Partition, by number.
using Segments = std::vector<int>;

/// The largest power of two that is at most N.
int power_below(int N)
{
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(N)));
}

/// What rank @p r is responsible for once all distances below @p distance are done: the segments s with the same
/// s modulo P modulo distance.
Segments segments_of_rank(int r, int distance, int N)
{
  const int P = power_below(N);
  Segments segments;
  for (int s = 0; s < N; ++s)
    if ((s % P) % distance == r % distance) segments.push_back(s);
  return segments;
}

/// Elements of segments, all together.
std::int64_t elements_of(const Segments& segments, const Partition& partition)
{
  std::int64_t n = 0;
  for (const int s : segments) n += partition.segment(s).count;
  return n;
}

/// Calls visit(segment's elements in the vector, the same elements in a message that has them one after the other).
template <class Visit>
void for_each_segment(const Segments& segments, const Partition& partition, Visit&& visit)
{
  std::int64_t first = 0;
  for (const int s : segments) {
    const Range elements = partition.segment(s);
    if (!elements.empty()) visit(elements, Range{first, elements.count});
    first += elements.count;
  }
}

/// Exchanges segments with a peer through the group's scratch.
/// @return  what arrived, one segment after the other.
Tensor exchange_segments(const Tensor& values, const Segments& sent, const Segments& received, int peer,
                         Group& group)
{
  const Partition partition(values.elements(), group.ranks());
  const std::int64_t out = elements_of(sent, partition), in = elements_of(received, partition);
  const Tensor scratch = group.scratch(values.type(), out + in);
  const Tensor packed = scratch.slice({0, out}), arrived = scratch.slice({out, in});
  for_each_segment(sent, partition, [&](Range elements, Range place) {
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
    transport.receive(values.slice(partition.segment(r)), r - P);
    return;
  }
  if (r + P < N) {
    const Tensor arrived = group.scratch(values.type(), values.elements());
    transport.receive(arrived, r + P);
    stream.add(values, arrived);
  }
  for (int distance = 1; distance < P; distance *= 2) {
    const int peer = r ^ distance;
    const Segments kept = segments_of_rank(r, 2 * distance, N), given = segments_of_rank(peer, 2 * distance, N);
    const Tensor arrived = exchange_segments(values, given, kept, peer, group);
    for_each_segment(kept, partition, [&](Range elements, Range place) {
      stream.add(values.slice(elements), arrived.slice(place));
    });
  }
  if (r + P < N) transport.send(values.slice(partition.segment(r + P)), r + P);
}

void doubling_all_gather(const Tensor& values, Group& group)
{
  Transport& transport = group.transport();
  const int N = group.ranks(), r = group.rank(), P = power_below(N);
  const Partition partition(values.elements(), N);

  if (r >= P) {
    transport.send(values.slice(partition.segment(r)), r - P);
    transport.receive(values, r - P);
    return;
  }
  if (r + P < N) transport.receive(values.slice(partition.segment(r + P)), r + P);
  for (int distance = P / 2; distance >= 1; distance /= 2) {
    const int peer = r ^ distance;
    const Segments own = segments_of_rank(r, 2 * distance, N), theirs = segments_of_rank(peer, 2 * distance, N);
    const Tensor arrived = exchange_segments(values, own, theirs, peer, group);
    for_each_segment(theirs, partition, [&](Range elements, Range place) {
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
