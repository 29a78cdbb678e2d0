#include "common/collectives/bruck.hpp"

namespace rankwise {

void bruck_all_to_all(const Tensor& sent, const Tensor& received, Group& group)
{
  const int N = group.ranks(), r = group.rank();
  const std::int64_t b = sent.elements() / N;
  if (b == 0) return;
  Stream& stream = group.transport().stream();
  const auto block = [b](const Tensor& of, std::int64_t i) { return of.slice({i * b, b}); };
  const Tensor rotated = group.scratch(sent.type(), N * b);
  for (int i = 0; i < N; ++i) stream.copy(block(rotated, i), block(sent, (r + i) % N));
  for (int distance = 1; distance < N; distance *= 2) {
    std::vector<int> moved;  // numbers of the blocks to send, at most N/2
    for (int i = distance; i < N; ++i)
      if ((i & distance) != 0) moved.push_back(i);
    const auto count = static_cast<std::int64_t>(moved.size());
    const Tensor packed = received.slice({0, count * b}), arrived = received.slice({count * b, count * b});
    for (std::int64_t m = 0; m < count; ++m)
      stream.copy(block(packed, m), block(rotated, moved[static_cast<std::size_t>(m)]));
    group.transport().exchange(packed, (r + distance) % N, arrived, (r + N - distance) % N);
    for (std::int64_t m = 0; m < count; ++m)
      stream.copy(block(rotated, moved[static_cast<std::size_t>(m)]), block(arrived, m));
  }
  for (int i = 0; i < N; ++i) stream.copy(block(received, (r + N - i) % N), block(rotated, i));
}

}  // namespace rankwise
