// Bruck's all-to-all: every block arrives, in log2 N messages, with scratch of one vector.

#include "common/collectives/bruck.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"

using namespace rankwise;

TEST_CASE("bruck_all_to_all: every block arrives, in a message to rank r + d for every power of two d")
{
  for (const std::int64_t b : {0L, 1L, 7L, 4099L}) {
    GroupForTest with(Algorithm::ring);
    const int N = world().ranks(), r = world().rank();
    Guarded<double> sent(N * b, r), received(N * b, r);
    bruck_all_to_all(sent.tensor(), received.tensor(), with.group);
    std::int64_t wrong = 0;
    for (int q = 0; q < N; ++q)
      for (std::int64_t i = 0; i < b; ++i) wrong += received.at(q * b + i) != value_at(q, r * b + i);
    REQUIRE(wrong == 0);
    REQUIRE(received.intact());
    std::map<int, std::int64_t> bytes;
    for (int d = 1; d < N && b > 0; d *= 2)
      for (int i = 0; i < N; ++i)
        if ((i & d) != 0) bytes[(r + d) % N] += 8 * b;
    REQUIRE(with.traffic.receivers_of("world") == bytes);
    REQUIRE(with.traffic.total().messages == std::ssize(bytes));
    REQUIRE(with.ledger.peak(Tier::device)[Category::communication] == 8 * N * b);
  }
}
