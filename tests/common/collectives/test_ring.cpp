// Ring reduce-scatter and all-gather, with counts that N divides and counts that it does not.

#include "common/collectives/ring.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"

using namespace rankwise;

namespace {

// 0 to a few elements; one message a share and a few elements more; several messages a share.
const std::int64_t longest = ring_message_bytes / 4;  // elements of f32
const std::vector<std::int64_t> counts{0, 1, 2, 3, 7, 60, 1001, 5 * longest + 3, 11 * longest + 1};

/// Traffic of a rank: all shards but one, each in messages of at most `longest` elements.
Traffic sent_but(int left_out, std::int64_t n, int N)
{
  Traffic sent;
  for (int q = 0; q < N; ++q) {
    const std::int64_t share = Partition(n, N).shard(q).count;
    if (q != left_out) sent += {.messages = (share + longest - 1) / longest, .bytes = 4 * share};
  }
  return sent;
}

}  // namespace

TEST_CASE("ring_reduce_scatter_sum: the own shard is complete and no byte is sent twice")
{
  GroupForTest with(Algorithm::ring);
  const int N = world().ranks(), r = world().rank();
  for (const std::int64_t n : counts) {
    INFO("n = " << n);
    Guarded<float> values(n, r);
    with.traffic.clear();
    ring_reduce_scatter_sum(values.tensor(), shards_of(n, N), with.group);
    const Range own = Partition(n, N).shard(r);
    std::int64_t wrong = 0;
    for (std::int64_t i = own.first; i < own.end(); ++i) wrong += values.at(i) != sum_at(N, i);
    REQUIRE(wrong == 0);
    REQUIRE(values.intact());
    REQUIRE(with.traffic.total() == sent_but(r, n, N));
  }
}

TEST_CASE("ring_all_gather: every rank has all shards")
{
  GroupForTest with(Algorithm::ring);
  const int N = world().ranks(), r = world().rank();
  for (const std::int64_t n : counts) {
    INFO("n = " << n);
    Guarded<float> values(n, r);
    with.traffic.clear();
    ring_all_gather(values.tensor(), shards_of(n, N), with.group);
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < n; ++i)
      wrong += values.at(i) != value_at(static_cast<int>(Partition(n, N).owner(i)), i);
    REQUIRE(wrong == 0);
    REQUIRE(values.intact());
    REQUIRE(with.traffic.total() == sent_but((r + 1) % N, n, N));
  }
}

TEST_CASE("ring_reduce_scatter_sum: shares of several pieces")
{
  GroupForTest with(Algorithm::ring);
  const int N = world().ranks(), r = world().rank();
  const std::int64_t n = 2 * longest + 5;
  std::vector<Share> shares;  // share q: shards q and q + N of 2 N
  for (int q = 0; q < N; ++q) shares.push_back({Partition(n, 2 * N).shard(q), Partition(n, 2 * N).shard(q + N)});
  Guarded<float> values(n, r);
  ring_reduce_scatter_sum(values.tensor(), shares, with.group);
  std::int64_t wrong = 0;
  for (const Range& piece : shares[static_cast<std::size_t>(r)])
    for (std::int64_t i = piece.first; i < piece.end(); ++i) wrong += values.at(i) != sum_at(N, i);
  REQUIRE(wrong == 0);
  ring_all_gather(values.tensor(), shares, with.group);
  for (std::int64_t i = 0; i < n; ++i) wrong += values.at(i) != sum_at(N, i);
  REQUIRE(wrong == 0);
}
