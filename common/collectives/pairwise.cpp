#include "common/collectives/pairwise.hpp"

#include <bit>

namespace rankwise {

Blocks blocks_of(std::span<const std::int64_t> counts)
{
  Blocks blocks;
  std::int64_t first = 0;
  for (const std::int64_t count : counts) {
    blocks.push_back({first, count});
    first += count;
  }
  return blocks;
}

void pairwise_all_to_all(const Tensor& sent, const Blocks& to, const Tensor& received, const Blocks& from,
                         Group& group)
{
  // BEGIN EXERCISE 02.8
  const int N = group.ranks(), r = group.rank();
  const auto block_for = [&](int rank) { return sent.slice(to[static_cast<std::size_t>(rank)]); };
  const auto block_from = [&](int rank) { return received.slice(from[static_cast<std::size_t>(rank)]); };
  const bool pairs = std::has_single_bit(static_cast<unsigned>(N));
  if (block_for(r).elements() > 0) group.transport().stream().copy(block_from(r), block_for(r));
  for (int k = 1; k < N; ++k) {
    const int receiver = pairs ? r ^ k : (r + k) % N, sender = pairs ? r ^ k : (r + N - k) % N;
    group.transport().exchange(block_for(receiver), receiver, block_from(sender), sender);
  }
  // END EXERCISE
}

}  // namespace rankwise
