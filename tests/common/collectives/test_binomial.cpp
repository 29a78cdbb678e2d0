// Broadcast and reduce along a binomial tree, from and to every root.

#include "common/collectives/binomial.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"

using namespace rankwise;

namespace {

const std::vector<std::int64_t> counts{0, 1, 3, 1001, 70001};

/// How many messages rank v, counted from the root, sends in a broadcast.
int children(int v, int N)
{
  int messages = 0;
  for (int distance = 1; distance < N; distance *= 2) messages += v < distance && v + distance < N;
  return messages;
}

}  // namespace

TEST_CASE("binomial_broadcast: from every root, with the messages of the tree")
{
  GroupForTest with(Algorithm::tree);
  const int N = world().ranks(), r = world().rank();
  for (int root = 0; root < N; ++root)
    for (const std::int64_t n : counts) {
      INFO("root " << root << ", n = " << n);
      Guarded<float> values(n, r);
      with.traffic.clear();
      binomial_broadcast(values.tensor(), root, with.group);
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < n; ++i) wrong += values.at(i) != value_at(root, i);
      REQUIRE(wrong == 0);
      REQUIRE(values.intact());
      const std::int64_t messages = n == 0 ? 0 : children((r - root + N) % N, N);
      REQUIRE(with.traffic.total() == Traffic{.messages = messages, .bytes = 4 * n * messages});
    }
}

TEST_CASE("binomial_reduce_sum: to every root, one message a rank")
{
  GroupForTest with(Algorithm::tree);
  const int N = world().ranks(), r = world().rank();
  for (int root = 0; root < N; ++root)
    for (const std::int64_t n : counts) {
      INFO("root " << root << ", n = " << n);
      Guarded<float> values(n, r);
      with.traffic.clear();
      binomial_reduce_sum(values.tensor(), root, with.group);
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < n && r == root; ++i) wrong += values.at(i) != sum_at(N, i);
      REQUIRE(wrong == 0);
      REQUIRE(values.intact());
      REQUIRE(with.traffic.total().messages == (r == root || n == 0 ? 0 : 1));
    }
}
