#include <vector>

#include <catch2/catch.hpp>

#include "common/base/tree_sum.hpp"
#include "lessons/15_experts/expert_gradients.hpp"
#include "tests/gpt2/testing.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// The gradient that one sequence contributes; sums of them depend on the order.
float of_sequence(std::int64_t sequence)
{
  return 1.0f / static_cast<float>(3 + 7 * sequence);
}

}  // namespace

TEST_CASE("ExpertGradients: micro-batches of several ranks add up as a tree over the group's sequences")
{
  constexpr std::int64_t share = 4, ranks = 2, group_first = 8;
  const float expected =
      tree_sum(group_first, share * ranks, [](std::int64_t sequence) { return of_sequence(sequence); });
  for (const std::int64_t own : {0, 1}) {
    Laboratory lab;
    const Arithmetic arithmetic(Sums::exact);
    const GradientLayout layout{.elements = 1, .type = DType::f32, .tied = {}, .frozen = {}};
    ExpertGradients gradients(arithmetic, lab.kernels(), lab.stream(), lab.memory(), layout,
                              {static_cast<int>(own), static_cast<int>(ranks)}, share);
    for (std::int64_t m = 0; m < share; ++m) {
      const Range sequences{group_first + own * share + m, 1};
      gradients.begin(sequences);
      for (std::int64_t rank = 0; rank < ranks; ++rank)
        gradients.of(rank).data<float>()[0] += of_sequence(group_first + rank * share + m);
      gradients.end(sequences);
    }
    CHECK(gradients.total().data<float>()[0] == expected);
  }
}
