// Pairwise exchange: blocks of all sizes, the messages of the table, no scratch.

#include <numeric>

#include "common/collectives/pairwise.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"

using namespace rankwise;

namespace {

/// Elements that each rank has for each other one, some of them 0.
std::int64_t count_of(int from, int to)
{
  return (2 * from + to) % 3 == 1 ? 0 : 7 + 5 * from + 3 * to;
}

}  // namespace

TEST_CASE("pairwise_all_to_all: every block arrives, each in one message to its receiver")
{
  GroupForTest with(Algorithm::ring);
  const int N = world().ranks(), r = world().rank();
  std::vector<std::int64_t> out, in, expected;
  for (int q = 0; q < N; ++q) {
    out.push_back(count_of(r, q));
    in.push_back(count_of(q, r));
    for (std::int64_t i = 0; i < in.back(); ++i) expected.push_back(10000 * q + 100 * r + i);
  }
  Guarded<std::int64_t> sent(std::accumulate(out.begin(), out.end(), std::int64_t{0}), r);
  Guarded<std::int64_t> received(std::ssize(expected), r);
  const Blocks to = blocks_of(out);
  for (int q = 0; q < N; ++q)
    for (std::int64_t i = 0; i < out[static_cast<std::size_t>(q)]; ++i)
      sent[to[static_cast<std::size_t>(q)].first + i] = 10000 * r + 100 * q + i;
  pairwise_all_to_all(sent.tensor(), to, received.tensor(), blocks_of(in), with.group);
  REQUIRE(std::vector(received.elements.begin() + 1, received.elements.end() - 1) == expected);
  REQUIRE(received.intact());
  std::map<int, std::int64_t> bytes;
  for (int q = 0; q < N; ++q)
    if (q != r && count_of(r, q) > 0) bytes[q] = 8 * count_of(r, q);
  REQUIRE(with.traffic.receivers_of("world") == bytes);
  REQUIRE(with.traffic.total().messages == std::ssize(bytes));
  REQUIRE(with.ledger.peak(Tier::device)[Category::communication] == 0);
}

TEST_CASE("blocks_of: one after the other")
{
  const std::vector<std::int64_t> counts{3, 0, 2};
  REQUIRE(blocks_of(counts) == Blocks{{0, 3}, {3, 0}, {3, 2}});
}
