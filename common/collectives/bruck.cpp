#include "common/collectives/bruck.hpp"

namespace rankwise {

void bruck_all_to_all(const Tensor& sent, const Tensor& received, Group& group)
{
  // BEGIN EXERCISE 02.9
  const int N = group.ranks(), r = group.rank();
  const std::int64_t b = sent.elements() / N;
  if (b == 0) return;
  Stream& stream = group.transport().stream();
  const auto block = [b](const Tensor& of, std::int64_t i) { return of.slice({i * b, b}); };

  // The number of a block is how many ranks it has to go.
  const Tensor rotated = group.scratch(sent.type(), N * b);
  for (int i = 0; i < N; ++i) stream.copy(block(rotated, i), block(sent, (r + i) % N));
  // Blocks whose number has bit d go d ranks on, in one message. They are packed in the first half of received, and
  // those that take their places arrive behind them.
  for (int distance = 1; distance < N; distance *= 2) {
    std::int64_t packed = 0, unpacked = 0;
    for (int i = 0; i < N; ++i)
      if ((i & distance) != 0) stream.copy(block(received, packed++), block(rotated, i));
    const Tensor arrived = received.slice({packed * b, packed * b});
    group.transport().exchange(received.slice({0, packed * b}), (r + distance) % N, arrived,
                               (r + N - distance) % N);
    for (int i = 0; i < N; ++i)
      if ((i & distance) != 0) stream.copy(block(rotated, i), block(arrived, unpacked++));
  }
  // Block i has come i ranks, from rank r - i.
  for (int i = 0; i < N; ++i) stream.copy(block(received, (r + N - i) % N), block(rotated, i));
  // END EXERCISE
}

}  // namespace rankwise
