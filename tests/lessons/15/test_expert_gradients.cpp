#include <vector>

#include "common/base/tree_sum.hpp"
#include "lessons/parallel/experts/expert_gradients.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/testing.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// The gradient that one sequence contributes. Beside the sum of the first two, 2^24, a 1 is lost and a 2 is not: so it
/// matters that the 1 of the third rank meets that of the fourth first.
float of_sequence(std::int64_t sequence)
{
  return sequence < 10 ? 0x1p23f : 0.5f;
}

}  // namespace

TEST_CASE("ExpertGradients: micro-batches of several ranks add up as a tree over the group's sequences")
{
  constexpr std::int64_t share = 2, ranks = 4, group_first = 8;  // with two ranks any order would do
  const float expected =
      tree_sum(group_first, share * ranks, [](std::int64_t sequence) { return of_sequence(sequence); });
  for (const std::int64_t own : {0, 1, 3}) {
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
