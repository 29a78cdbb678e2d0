// Sums over data-parallel ranks, comparisons of replicas, and refused batches.

#include <cmath>
#include <string>

#include "common/base/error.hpp"
#include "lessons/frame/replicas.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"

using namespace rankwise;

TEST_CASE("check_replicas: one bit that differs on one rank is noticed on all, with the rank")
{
  GroupForTest test(Algorithm::ring);
  std::vector<float> parameters(1001, 0.5f);
  const Tensor tensor(std::span<float>(parameters), {1001});
  REQUIRE_NOTHROW(check_replicas(*test.stream, tensor, "after step 3"));
  const int last = world().ranks() - 1;
  if (last == 0) return;
  if (world().rank() == last) parameters[1000] = std::nextafter(0.5f, 1.0f);
  REQUIRE_THROWS_WITH(check_replicas(*test.stream, tensor, "after step 3"),
                      Contains("after step 3") && Contains("rank " + std::to_string(last) + " differ"));
}

TEST_CASE("check_replicas: of more elements than are copied at a time, to the last one")
{
  GroupForTest test(Algorithm::ring);
  std::vector<float> parameters((5 << 20) / sizeof(float) / 2 + 1, 0.5f);
  const Tensor tensor(std::span<float>(parameters), {std::ssize(parameters)});
  REQUIRE_NOTHROW(check_replicas(*test.stream, tensor, "after step 3"));
  if (world().ranks() == 1) return;
  if (world().rank() == 0) parameters.back() = 0.25f;
  REQUIRE_THROWS(check_replicas(*test.stream, tensor, "after step 3"));
}

TEST_CASE("check_replicas, replica_hash: of bf16 parameters too, to the last bit")
{
  GroupForTest test(Algorithm::ring);
  std::vector<bf16> parameters(1001, bf16(0.5f));
  const Tensor tensor(std::span<bf16>(parameters), {1001});
  const std::string before = replica_hash(*test.stream, tensor);
  CHECK(before.size() == 16);
  REQUIRE_NOTHROW(check_replicas(*test.stream, tensor, "after step 3"));
  if (world().rank() == world().ranks() - 1) parameters[1000].bits ^= 1;
  CHECK((replica_hash(*test.stream, tensor) == before) == (world().rank() < world().ranks() - 1));
  if (world().ranks() > 1) REQUIRE_THROWS(check_replicas(*test.stream, tensor, "after step 3"));
}

TEST_CASE("same_on_all_ranks: a digit that differs on one rank is noticed on all")
{
  GroupForTest test(Algorithm::ring);
  REQUIRE(same_on_all_ranks("c0ffee", test.group));
  if (world().ranks() == 1) return;
  REQUIRE_FALSE(same_on_all_ranks(world().rank() == world().ranks() - 1 ? "c0ffef" : "c0ffee", test.group));
}

TEST_CASE("all_reduce_sum: losses and their tokens")
{
  GroupForTest test(Algorithm::ring);
  const int N = world().ranks(), r = world().rank();
  LossSum loss, expected;
  loss.nats.add(0.1 * (r + 1));
  loss.valid_tokens = 100 + r;
  for (int q = 0; q < N; ++q) {
    expected.nats.add(0.1 * (q + 1));
    expected.valid_tokens += 100 + q;
  }
  all_reduce_sum(loss, test.group);
  REQUIRE(loss.nats.value() == expected.nats.value());
  REQUIRE(loss.valid_tokens == expected.valid_tokens);
}

TEST_CASE("check_share: a batch that the ranks cannot divide is refused")
{
  REQUIRE_NOTHROW(check_share(12, 3));
  REQUIRE_THROWS_WITH(check_share(16, 3), Contains("--global-batch=16") && Contains("multiple of 3"));
  LessonOptions options;
  options.global_batch = 5;
  const Layout uneven{.dp = 3, .uneven = true};
  REQUIRE_THROWS_WITH(check_share(options, uneven), Contains("--global-batch=5") && Contains("multiple of 3"));
  options.arithmetic = Sums::exact;
  REQUIRE_NOTHROW(check_share(options, uneven));
  REQUIRE_THROWS_WITH(check_share(options, {.dp = 3}), Contains("multiple of 3"));
  REQUIRE_THROWS_WITH(check_share(options, {.dp = 6, .uneven = true}),
                      Contains("--global-batch=5") && Contains("--global-batch=6"));
  options.messages.collectives = "shared";
  REQUIRE_THROWS_WITH(check_share(options, uneven), Contains("--collectives=shared") && Contains("halving"));
}
