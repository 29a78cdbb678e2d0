// The sequences of a rank in lesson 05: those of one micro-batch of all ranks are adjacent.

#include "lessons/parallel/zero/shard_sums.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"

using namespace rankwise;

TEST_CASE("micro_batches_of_step: B sequences per micro-batch, adjacent to those of the neighbouring ranks")
{
  GroupForTest test(Algorithm::ring);
  const int N = world().ranks(), r = world().rank();
  for (const std::int64_t B : {1, 2, 4})
    for (const std::int64_t M : {1, 2, 3, 4}) {
      INFO("B = " << B << ", M = " << M);
      const std::vector<Range> micro_batches =
          micro_batches_of_step({.global_batch = M * N * B, .micro_batch = B}, test.group);
      REQUIRE(micro_batches.size() == static_cast<std::size_t>(M));
      for (std::int64_t m = 0; m < M; ++m) {
        const Range pass = micro_batches[static_cast<std::size_t>(m)];
        CHECK(pass == Range{(m * N + r) * B, B});
        CHECK(of_all_ranks(pass, test.group) == Range{m * N * B, N * B});
      }
    }
}
