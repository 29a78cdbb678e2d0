#include "lessons/02_collectives/textbook_ring.hpp"

#include <algorithm>

#include "common/base/partition.hpp"
#include "common/memory/element_sum.hpp"

namespace rankwise {

void textbook_ring_all_reduce_sum(const Tensor& values, Group& group)
{
  check_summable(values.type());
  const CollectiveScope scope(group, {"all-reduce", "textbook-ring", values.type(), values.elements()});
  // BEGIN EXERCISE 02.7
  Transport& transport = group.transport();
  const int N = group.ranks(), r = group.rank(), next = (r + 1) % N, previous = (r + N - 1) % N;
  // The vector in N shards of about S/N bytes each. Shard numbers are taken modulo N, so they may be negative.
  const Partition partition(values.elements(), N);
  const auto shard = [&](int s) { return values.slice(partition.shard((s + N) % N)); };  // -N <= s < N

  // Reduce-scatter, N-1 steps. In step k a rank sends its partial sum of one shard to the next rank, while it
  // receives that of another shard, over k + 1 ranks, and adds its own values. In the end shard r is complete.
  for (int k = 0; k < N - 1; ++k) {
    const Tensor sum = shard(r - k - 2), arrived = group.scratch(values.type(), sum.elements());
    transport.exchange(shard(r - k - 1), next, arrived, previous);
    transport.stream().add(sum, arrived);
  }
  // All-gather, N-1 steps. A rank first sends its own complete shard, then always the one received last.
  for (int k = 0; k < N - 1; ++k) transport.exchange(shard(r - k), next, shard(r - k - 1), previous);
  // END EXERCISE
}

Traffic textbook_ring_traffic(std::int64_t n, DType type, int ranks, int rank)
{
  Traffic sent;
  for (const int left_out : {rank, (rank + 1) % ranks})
    for (int s = 0; s < ranks; ++s) {
      const Range shard = Partition(n, ranks).shard(s);
      if (s != left_out && !shard.empty()) sent += {.messages = 1, .bytes = shard.count * bytes_of(type)};
    }
  return sent;
}

std::int64_t textbook_ring_scratch(std::int64_t n, DType type, int ranks, int rank)
{
  std::int64_t most = 0;
  for (int s = 0; s < ranks; ++s)
    if (s != (rank + ranks - 1) % ranks) most = std::max(most, Partition(n, ranks).shard(s).count);
  return most * bytes_of(type);
}

}  // namespace rankwise
