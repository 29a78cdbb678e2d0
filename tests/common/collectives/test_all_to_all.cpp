// All-to-all by every algorithm: blocks of equal and of other sizes, traffic, scratch, wrong counts.

#include <fmt/format.h>

#include "common/collectives/bruck.hpp"
#include "common/collectives/cost.hpp"
#include "common/collectives/pairwise.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"

using namespace rankwise;

namespace {

using Counts = std::vector<std::int64_t>;

/// All algorithms: a group of any one of them can do an all-to-all.
std::vector<Algorithm> algorithms_here()
{
  std::vector<Algorithm> here{Algorithm::pairwise, Algorithm::bruck};
  for (const auto& [name, algorithm] : algorithms()) here.push_back(algorithm);
  return here;
}

/// The value of element i of the block of one rank for another.
int value_of(int from, int to, std::int64_t i)
{
  return value_at(16 * from + to, i);
}

/// Elements that each rank has for each other one: they differ by both, and some are 0.
std::int64_t count_of(int from, int to, std::int64_t n)
{
  return (from + 2 * to) % 4 == 1 ? 0 : n * (1 + (3 * from + to) % 5) / 2;
}

Counts counts_to_others(int rank, int N, std::int64_t n)
{
  Counts counts;
  for (int q = 0; q < N; ++q) counts.push_back(count_of(rank, q, n));
  return counts;
}

Counts counts_from_others(int rank, int N, std::int64_t n)
{
  Counts counts;
  for (int q = 0; q < N; ++q) counts.push_back(count_of(q, rank, n));
  return counts;
}

std::int64_t sum_of(const Counts& counts)
{
  std::int64_t sum = 0;
  for (const std::int64_t count : counts) sum += count;
  return sum;
}

/// A vector of blocks, filled with the value of each element.
template <class T, class Value>
Guarded<T> blocks_with(const Counts& counts, Value&& value)
{
  Guarded<T> blocks(sum_of(counts), 0);
  std::int64_t at = 0;
  for (std::size_t q = 0; q < counts.size(); ++q)
    for (std::int64_t i = 0; i < counts[q]; ++i) blocks[at++] = static_cast<T>(value(static_cast<int>(q), i));
  return blocks;
}

/// Whether what arrived and what was sent are as a plain loop makes them.
template <class T>
void try_all(Group& group, std::int64_t n)
{
  const int N = group.ranks(), r = group.rank();
  const auto to = [r](int q, std::int64_t i) { return value_of(r, q, i); };
  const auto from = [r](int q, std::int64_t i) { return value_of(q, r, i); };
  INFO(fmt::format("blocks of {} elements of {} by {}", n, name_of(dtype_of<T>()), name_of(group.algorithm())));

  const Counts equal(static_cast<std::size_t>(N), n);
  Guarded<T> sent = blocks_with<T>(equal, to), received(N * n, 99);
  all_to_all(sent.tensor(), received.tensor(), group);
  REQUIRE(received.elements == blocks_with<T>(equal, from).elements);
  REQUIRE(sent.elements == blocks_with<T>(equal, to).elements);

  const Counts out = counts_to_others(r, N, n), in = counts_from_others(r, N, n);
  Guarded<T> sent_v = blocks_with<T>(out, to), received_v(sum_of(in), 99);
  all_to_all_v(sent_v.tensor(), out, received_v.tensor(), in, group);
  REQUIRE(received_v.elements == blocks_with<T>(in, from).elements);
  REQUIRE(sent_v.elements == blocks_with<T>(out, to).elements);
}

}  // namespace

TEST_CASE("all_to_all: every algorithm transposes the blocks, equal or not, for any size and type")
{
  for (const Algorithm algorithm : algorithms_here()) {
    GroupForTest test(algorithm, 0, true);
    for (const std::int64_t n : {0L, 1L, 2L, 37L, 4099L}) {
      try_all<float>(test.group, n);
      try_all<double>(test.group, n);
      try_all<std::int32_t>(test.group, n);
      try_all<std::int64_t>(test.group, n);
      try_all<std::uint8_t>(test.group, n);
    }
  }
}

TEST_CASE("all_to_all: bf16 and numbers on the host")
{
  GroupForTest test(Algorithm::ring);
  const int N = world().ranks(), r = world().rank();
  std::vector<bf16> sent, received(static_cast<std::size_t>(N));
  for (int q = 0; q < N; ++q) sent.push_back(bf16(static_cast<float>(10 * r + q)));
  all_to_all(Tensor(std::span(sent), {N}), Tensor(std::span(received), {N}), test.group);
  Counts numbers;
  for (int q = 0; q < N; ++q) {
    REQUIRE(static_cast<float>(received[static_cast<std::size_t>(q)]) == static_cast<float>(10 * q + r));
    numbers.push_back(count_of(r, q, 3));
  }
  REQUIRE(all_to_all(numbers, test.group) == counts_from_others(r, N, 3));
}

TEST_CASE("expected_traffic: the bytes of an all-to-all and its scratch equal the formulas")
{
  const int N = world().ranks(), r = world().rank();
  for (const Algorithm algorithm : algorithms_here())
    for (const std::int64_t n : {0L, 1L, 5L, 256L, 257L, 4099L}) {
      INFO(fmt::format("blocks of {} by {}", n, name_of(algorithm)));
      const Counts equal(static_cast<std::size_t>(N), n), out = counts_to_others(r, N, n);
      const CollectiveShape shape{"all-to-all", algorithm, DType::f32, N * n};
      GroupForTest test(algorithm);
      reserve_scratch(shape, test.group);
      const std::int64_t scratch = scratch_bytes({shape}, test.group.topology(), r);
      CHECK(test.ledger.current(Tier::device)[Category::communication] == scratch);
      Guarded<float> sent(N * n, r), received(N * n, r);
      all_to_all(sent.tensor(), received.tensor(), test.group);
      CHECK(test.traffic.of("world", "all-to-all") == expected_traffic(shape, test.group.topology(), r));
      CHECK(test.ledger.current(Tier::device)[Category::communication] == scratch);

      const Counts in = counts_from_others(r, N, n);
      const CollectiveShape of_other_sizes{"all-to-all-v", algorithm, DType::f32, 0, 0, out};
      Guarded<float> sent_v(sum_of(out), r), received_v(sum_of(in), r);
      all_to_all_v(sent_v.tensor(), out, received_v.tensor(), in, test.group);
      CHECK(test.traffic.of("world", "all-to-all-v") == expected_traffic(of_other_sizes, test.group.topology(), r));
      CHECK(scratch_bytes({of_other_sizes}, test.group.topology(), r) == 0);
      CHECK(test.ledger.current(Tier::device)[Category::communication] == scratch);
    }
}

TEST_CASE("expected_traffic: pairwise exchange sends N-1 blocks, Bruck log2 N messages of half of them")
{
  const std::int64_t b = 24;
  for (const int N : {1, 2, 3, 4, 5, 8, 13, 16, 64}) {
    const Topology topology = topology_of(std::vector<int>(static_cast<std::size_t>(N), 0), 0);
    const auto traffic = [&](Algorithm algorithm) {
      return expected_traffic({"all-to-all", algorithm, DType::f32, N * b}, topology, N - 1);
    };
    CHECK(traffic(Algorithm::pairwise) == Traffic{.messages = N - 1, .bytes = 4 * b * (N - 1)});
    int steps = 0;
    while ((1 << steps) < N) ++steps;
    CHECK(traffic(Algorithm::bruck).messages == steps);
    if ((N & (N - 1)) == 0) CHECK(traffic(Algorithm::bruck).bytes == 4 * b * steps * N / 2);
    std::int64_t hops = 0;  // a block that goes i ranks on makes a step for each bit of i
    for (int i = 0; i < N; ++i)
      for (int bit = i; bit > 0; bit /= 2) hops += bit % 2;
    CHECK(traffic(Algorithm::bruck).bytes == 4 * b * hops);
  }
}

TEST_CASE("chosen_algorithm: Bruck sends small blocks of four and more ranks, whatever the other collectives use")
{
  for (const int N : {1, 2, 3, 4, 8}) {
    const Topology topology = topology_of(std::vector<int>(static_cast<std::size_t>(N), 0), 0);
    for (const Algorithm algorithm : {Algorithm::automatic, Algorithm::ring, Algorithm::shared}) {
      const auto chosen = [&](std::int64_t block) {
        return chosen_algorithm(algorithm, topology, "all-to-all", N * block);
      };
      CHECK(chosen(small_block) == (N > 3 ? Algorithm::bruck : Algorithm::pairwise));
      CHECK(chosen(small_block + 1) == Algorithm::pairwise);
      CHECK(chosen_algorithm(algorithm, topology, "all-to-all-v", 0) == Algorithm::pairwise);
    }
  }
}

TEST_CASE("all_to_all: counts that cannot be are refused before anything is sent")
{
  GroupForTest test(Algorithm::ring);
  const int N = world().ranks();
  std::vector<float> a(static_cast<std::size_t>(N)), b(static_cast<std::size_t>(N + 1));
  const Tensor sent(std::span<float>(a), {N}), longer(std::span<float>(b), {N + 1});
  const Counts ones(static_cast<std::size_t>(N), 1);
  Counts negative = ones, too_few(static_cast<std::size_t>(N - 1), 1);
  negative.front() = -1;
  REQUIRE_THROWS_WITH(all_to_all(sent, longer, test.group), Contains("blocks of one size"));
  if (N > 1) REQUIRE_THROWS_WITH(all_to_all(longer, longer, test.group), Contains("blocks of one size"));
  for (const Counts& wrong : {negative, too_few}) {
    REQUIRE_THROWS_WITH(all_to_all_v(sent, wrong, sent, ones, test.group), Contains("do not divide"));
    REQUIRE_THROWS_WITH(all_to_all_v(sent, ones, sent, wrong, test.group), Contains("do not divide"));
  }
  REQUIRE_THROWS_WITH(all_to_all_v(sent, ones, longer, ones, test.group), Contains("do not divide"));
  Counts more_for_itself = ones;
  ++more_for_itself[static_cast<std::size_t>(world().rank())];
  REQUIRE_THROWS_WITH(all_to_all_v(sent, ones, longer, more_for_itself, test.group), Contains("its own rank"));
  REQUIRE(test.traffic.total() == Traffic{});
}

TEST_CASE("all_to_all_v: --check-messages names two ranks that disagree on a count, on all ranks")
{
  const int N = world().ranks(), r = world().rank();
  if (N == 1) return;
  GroupForTest test(Algorithm::ring, 0, true);
  const Counts twos(static_cast<std::size_t>(N), 2);
  Counts in = twos;
  if (r == 1) in[0] = 3;  // rank 0 sends 2
  std::vector<float> a(static_cast<std::size_t>(sum_of(twos))), b(static_cast<std::size_t>(sum_of(in)));
  const Tensor sent(std::span<float>(a), {std::ssize(a)}), received(std::span<float>(b), {std::ssize(b)});
  try {
    all_to_all_v(sent, twos, received, in, test.group);
    FAIL("nothing was refused");
  } catch (const UserError& error) {
    CHECK_THAT(error.what(), Contains("the counts of an all-to-all do not fit") &&
                                 Contains("rank 0 sends 2 elements to rank 1, which expects 3") &&
                                 !Contains("rank 1 sends"));
  }
  REQUIRE(test.traffic.total() == Traffic{});
}
