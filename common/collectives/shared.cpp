#include "common/collectives/shared.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "common/memory/element_sum.hpp"

namespace rankwise {

namespace {

/// Sums are computed and stored in pieces of this many bytes, while the next ones are being loaded from memory.
constexpr std::int64_t piece_bytes = 2 << 10;

/// Start of the same vector on each rank.
using Addresses = std::span<void* const>;

std::byte* moved(void* first, std::int64_t bytes)
{
  return static_cast<std::byte*>(first) + bytes;
}

void copy_bytes(void* to, const void* from, std::int64_t bytes)
{
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

/// A call on one rank.
struct Call {
  Call(const Tensor& vector, Group& all)
      : group(all), memory(all.shared()), values(vector), r(all.rank()), N(all.ranks())
  {
  }

  Range shard(int q) const { return Partition(values.elements(), N).shard(q); }
  void count(std::string_view collective, std::int64_t elements) const
  {
    group.count(collective, {.read_bytes = elements * s});
  }

  Group& group;
  SharedMemory& memory;
  Tensor values;
  int r, N;
  std::int64_t s = bytes_of(values.type());  // bytes per element
  std::int64_t n = values.elements();
  std::int64_t own = shard(r).count;  // number of elements of its shard
};

/// Sums this rank's shard over all ranks' values and stores it in @p to; all are whole vectors.
void sum_own_shard(const Call& call, Addresses vectors, Addresses to)
{
  const Range shard = call.shard(call.r);
  const std::int64_t piece = piece_bytes / call.s;
  std::vector<const void*> from(vectors.size());
  for (std::int64_t first = shard.first; first < shard.end(); first += piece) {
    const std::int64_t count = std::min(piece, shard.end() - first);
    for (std::size_t q = 0; q < from.size(); ++q) from[q] = moved(vectors[q], first * call.s);
    std::byte* sum = moved(to.front(), first * call.s);
    sum_elements(call.values.type(), sum, from, count);
    for (void* other : to.subspan(1)) copy_bytes(moved(other, first * call.s), sum, count * call.s);
  }
}

/// Sums in rounds: in each, every rank sums a part of its shard. Ranks for which @p gathers (rank) holds then read
/// the other ranks' sums.
template <class Gathers>
void sum_in_turns(const Call& call, Gathers&& gathers)
{
  const std::int64_t s = call.s;
  const std::int64_t part = SharedMemory::area_bytes / call.N / 64 * 64 / s;  // elements of each shard in one round
  const auto part_of = [&](int q, std::int64_t done) {
    const Range shard = call.shard(q);
    return intersect(shard, {shard.first + done, part});
  };
  const auto in_values = [&](Range range) { return call.values.raw() + range.first * s; };
  const auto in_area = [&](std::byte* area, int q) { return area + q * part * s; };
  bool anyone_gathers = false;
  for (int q = 0; q < call.N; ++q) anyone_gathers |= gathers(q);

  std::vector<const void*> from(static_cast<std::size_t>(call.N));
  for (std::int64_t done = 0; done < call.shard(0).count; done += part) {
    const std::span<std::byte* const> areas = call.memory.next_areas();
    std::byte* own_area = areas[static_cast<std::size_t>(call.r)];
    const Range own = part_of(call.r, done);
    for (int q = 0; q < call.N; ++q) {
      const Range range = part_of(q, done);
      from[static_cast<std::size_t>(q)] =
          q == call.r ? in_values(own) : in_area(areas[static_cast<std::size_t>(q)], call.r);
      if (q != call.r) copy_bytes(in_area(own_area, q), in_values(range), range.count * s);
    }
    call.memory.barrier();
    sum_elements(call.values.type(), in_values(own), from, own.count);
    if (!anyone_gathers) continue;
    copy_bytes(in_area(own_area, call.r), in_values(own), own.count * s);
    call.memory.barrier();
    if (!gathers(call.r)) continue;
    for (int q = 0; q < call.N; ++q) {
      const Range range = part_of(q, done);
      if (q != call.r)
        copy_bytes(in_values(range), in_area(areas[static_cast<std::size_t>(q)], q), range.count * s);
    }
  }
}

/// Every rank computes the whole sum.
void sum_whole(const Call& call)
{
  const std::span<std::byte* const> areas = call.memory.next_areas();
  copy_bytes(areas[static_cast<std::size_t>(call.r)], call.values.raw(), call.values.bytes());
  call.memory.barrier();
  const std::vector<const void*> from(areas.begin(), areas.end());
  sum_elements(call.values.type(), call.values.raw(), from, call.n);
}

}  // namespace

void shared_reduce_scatter_sum(const Tensor& values, Group& group)
{
  const Call call(values, group);
  check_summable(values.type());
  if (call.N == 1 || call.n == 0) return;
  call.count("reduce-scatter", (call.N - 1) * call.own);
  const Addresses peers = call.memory.peers(values.raw());
  if (peers.empty()) return sum_in_turns(call, [](int) { return false; });
  sum_own_shard(call, peers, peers.subspan(static_cast<std::size_t>(call.r), 1));
  call.memory.barrier();
}

void shared_all_gather(const Tensor& values, Group& group)
{
  const Call call(values, group);
  if (call.N == 1 || call.n == 0) return;
  call.count("all-gather", call.n - call.own);
  const auto for_each_other = [&](auto&& f) {
    for (int step = 1; step < call.N; ++step) f((call.r + step) % call.N);
  };
  const Addresses peers = call.memory.peers(values.raw());
  if (!peers.empty()) {
    for_each_other([&](int q) {
      const std::int64_t first = call.shard(q).first * call.s;
      copy_bytes(values.raw() + first, moved(peers[static_cast<std::size_t>(q)], first),
                 call.shard(q).count * call.s);
    });
    return call.memory.barrier();
  }
  const std::int64_t part = SharedMemory::area_bytes / call.s;
  for (std::int64_t done = 0; done < call.shard(0).count; done += part) {
    const std::span<std::byte* const> areas = call.memory.next_areas();
    const auto part_of = [&](int q) { return intersect(call.shard(q), {call.shard(q).first + done, part}); };
    const auto in_values = [&](int q) { return values.raw() + part_of(q).first * call.s; };
    copy_bytes(areas[static_cast<std::size_t>(call.r)], in_values(call.r), part_of(call.r).count * call.s);
    call.memory.barrier();
    for_each_other(
        [&](int q) { copy_bytes(in_values(q), areas[static_cast<std::size_t>(q)], part_of(q).count * call.s); });
  }
}

void shared_all_reduce_sum(const Tensor& values, Group& group)
{
  const Call call(values, group);
  check_summable(values.type());
  if (call.N == 1 || call.n == 0) return;
  if (values.bytes() <= shared_whole_bytes) {
    call.count("all-reduce", (call.N - 1) * call.n);
    return sum_whole(call);
  }
  call.count("all-reduce", (call.N - 1) * call.own + call.n - call.own);
  const Addresses peers = call.memory.peers(values.raw());
  if (peers.empty()) return sum_in_turns(call, [](int) { return true; });
  sum_own_shard(call, peers, peers);
  call.memory.barrier();
}

void shared_broadcast(const Tensor& values, int root, Group& group)
{
  const Call call(values, group);
  if (call.N == 1 || call.n == 0) return;
  call.count("broadcast", call.r == root ? 0 : call.n);
  const Addresses peers = call.memory.peers(values.raw());
  if (!peers.empty()) {
    if (call.r != root) copy_bytes(values.raw(), peers[static_cast<std::size_t>(root)], values.bytes());
    return call.memory.barrier();
  }
  for (std::int64_t first = 0; first < values.bytes(); first += SharedMemory::area_bytes) {
    std::byte* area = call.memory.next_areas()[static_cast<std::size_t>(root)];
    const std::int64_t bytes = std::min(SharedMemory::area_bytes, values.bytes() - first);
    if (call.r == root) copy_bytes(area, values.raw() + first, bytes);
    call.memory.barrier();
    if (call.r != root) copy_bytes(values.raw() + first, area, bytes);
  }
}

void shared_reduce_sum(const Tensor& values, int root, Group& group)
{
  const Call call(values, group);
  check_summable(values.type());
  if (call.N == 1 || call.n == 0) return;
  call.count("reduce", (call.N - 1) * call.own + (call.r == root ? call.n - call.own : 0));
  const Addresses peers = call.memory.peers(values.raw());
  if (peers.empty()) return sum_in_turns(call, [root](int rank) { return rank == root; });
  sum_own_shard(call, peers, peers.subspan(static_cast<std::size_t>(root), 1));
  call.memory.barrier();
}

}  // namespace rankwise
