#include "common/collectives/dissemination.hpp"

#include <array>
#include <cstdint>

namespace rankwise {

void dissemination_barrier(Group& group)
{
  const int N = group.ranks(), r = group.rank();
  const Tensor tokens = group.scratch(DType::u8, 2);
  group.transport().stream().zero(tokens);
  for (int distance = 1; distance < N; distance *= 2)
    group.transport().exchange(tokens.slice({0, 1}), (r + distance) % N, tokens.slice({1, 1}),
                               (r + N - distance) % N);
}

}  // namespace rankwise
