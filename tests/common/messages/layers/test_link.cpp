// Communication on the virtual clock, against formulas: every figure is exact.

#include <bit>
#include <chrono>
#include <thread>

#include <fmt/format.h>

#include "common/collectives/chain.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"

using namespace rankwise;

namespace {

constexpr Picoseconds alpha = 5'000'000;  // 5us
constexpr Picoseconds beta = 100;         // a byte, at 10GB/s

/// A group on a clock.
struct ClockedGroup {
  explicit ClockedGroup(Algorithm algorithm, const std::string& link = "5us,10GB/s", int ranks_per_node = 0,
                        std::uint32_t chaos = 0)
      : base(Algorithm::ring), clock(parse_link(link), 1e12)
  {
    GroupSetup setup = base.setup;
    setup.algorithm = algorithm;
    setup.ranks_per_node = ranks_per_node;
    setup.clock = &clock;
    setup.chaos = chaos;
    group = std::make_unique<Group>("clocked", Communicator::world(), setup);
  }

  /// The time of a call of this rank, from a moment at which all ranks are at 0.
  template <class Call>
  Picoseconds time_of(Call&& call)
  {
    clock.step();
    call(*group);
    return clock.step().step;
  }

  GroupForTest base;
  VirtualClock clock;
  std::unique_ptr<Group> group;
};

/// n bytes whose values do not matter.
struct Bytes {
  explicit Bytes(std::int64_t n) : values(static_cast<std::size_t>(n), 1) {}
  Tensor tensor() { return Tensor(std::span<std::int32_t>(values), {static_cast<std::int64_t>(values.size())}); }

  std::vector<std::int32_t> values;
};

/// A step of a program with two buckets in a queue: a backward pass in three parts, a norm, an update.
VirtualStep overlapped_step(ClockedGroup& clocked, Bytes& one, Bytes& two, int nap_ms)
{
  VirtualClock& clock = clocked.clock;
  const auto nap = [&](int times) { std::this_thread::sleep_for(std::chrono::milliseconds(nap_ms * times)); };
  clock.charge_compute(1'000'000);
  const Moment first = clock.handed_over();
  std::vector<Moment> done;
  std::thread queue([&] {
    nap(world().rank() % 2);
    clock.begin(first, "1");
    all_reduce_sum(one.tensor(), *clocked.group);
    done.push_back(clock.end());
    nap(1);
    clock.begin({first.since_start + 2'000'000}, "2");
    all_reduce_sum(two.tensor(), *clocked.group);
    done.push_back(clock.end());
  });
  nap((world().rank() + 1) % 2);
  clock.charge_compute(2'000'000);
  clock.handed_over();
  clock.charge_compute(30'000'000);
  queue.join();
  for (const Moment moment : done) clock.wait_for(moment);
  clock.charge_compute(4'000'000);
  return clock.step();
}

}  // namespace

TEST_CASE("LinkTransport: a ring all-reduce takes 2 (N-1) (alpha + beta n / N)")
{
  const int N = world().ranks();
  for (const std::int64_t shard : {1, 250, 1000}) {  // elements of 4 bytes
    ClockedGroup ring(Algorithm::ring);
    Bytes values(N * shard);
    const Picoseconds time = ring.time_of([&](Group& group) { all_reduce_sum(values.tensor(), group); });
    REQUIRE(time == 2 * (N - 1) * (alpha + beta * 4 * shard));
    REQUIRE(values.values == std::vector<std::int32_t>(values.values.size(), N));
  }
}

TEST_CASE("LinkTransport: a binomial broadcast reaches rank v after popcount(v) alpha + bit_width(v) beta n")
{
  const int N = world().ranks();
  const auto v = static_cast<unsigned>(world().rank());
  ClockedGroup tree(Algorithm::tree);
  Bytes values(1000);
  const Picoseconds time = tree.time_of([&](Group& group) { broadcast(values.tensor(), 0, group); });
  int sends = 0;  // of this rank, one after the other
  for (unsigned d = std::bit_ceil(v + 1); static_cast<int>(v + d) < N; d *= 2) ++sends;
  REQUIRE(time == std::popcount(v) * alpha + (static_cast<int>(std::bit_width(v)) + sends) * beta * 4000);
}

TEST_CASE("LinkTransport: a chain of k pieces reaches rank v after v alpha + (k - 1 + v) beta p")
{
  const int N = world().ranks(), v = world().rank();
  constexpr int pieces = 6;
  ClockedGroup ring(Algorithm::ring);
  Bytes values(pieces * chain_message_bytes / 4);
  const Picoseconds time = ring.time_of([&](Group& group) { broadcast(values.tensor(), 0, group); });
  const bool sends = v + 1 < N;  // the last piece
  const Picoseconds piece = beta * chain_message_bytes;
  REQUIRE(time == (N == 1 ? 0 : v * alpha + (pieces - 1 + v + (sends ? 1 : 0)) * piece));
}

TEST_CASE("LinkTransport: halving and doubling take log2(N) exchanges each")
{
  const int N = world().ranks();
  if (!std::has_single_bit(static_cast<unsigned>(N))) return;
  ClockedGroup halving(Algorithm::halving);
  Bytes values(N * 10'000);
  const Picoseconds scatter = halving.time_of([&](Group& group) { reduce_scatter_sum(values.tensor(), group); });
  const int steps = std::bit_width(static_cast<unsigned>(N)) - 1;
  REQUIRE(scatter == steps * alpha + beta * 40'000 * (N - 1));
  const Picoseconds gather = halving.time_of([&](Group& group) { all_gather(values.tensor(), group); });
  REQUIRE(gather == scatter);
}

TEST_CASE(
    "LinkTransport: an all-to-all takes (N-1) (alpha + beta b) in pairs, log2 N (alpha + beta N b / 2) by Bruck")
{
  const int N = world().ranks();
  for (const std::int64_t block : {1, 250, 1000}) {  // elements of 4 bytes
    Bytes sent(N * block), received(N * block);
    const auto time_by = [&](Algorithm algorithm) {
      ClockedGroup clocked(algorithm);
      return clocked.time_of([&](Group& group) { all_to_all(sent.tensor(), received.tensor(), group); });
    };
    REQUIRE(time_by(Algorithm::pairwise) == (N - 1) * (alpha + beta * 4 * block));
    Picoseconds bruck = 0;  // N not a power of two: fewer blocks in the last step
    for (int distance = 1; distance < N; distance *= 2)
      for (int i = 0; i < N; ++i)
        bruck += (i == distance ? alpha : 0) + ((i & distance) != 0 ? beta * 4 * block : 0);
    REQUIRE(time_by(Algorithm::bruck) == bruck);
    if (N == 4) REQUIRE(bruck == 2 * (alpha + beta * 2 * 4 * block));
  }
}

TEST_CASE("LinkTransport: messages between nodes take the other link")
{
  const int N = world().ranks(), r = world().rank();
  if (N < 3) return;
  ClockedGroup pairs(Algorithm::ring, "1us,100GB/s,20us,1GB/s,2");
  Bytes values(1000);
  const auto pass = [&](int from, int to) {
    return pairs.time_of([&](Group& group) {
      if (r == from) group.transport().send(values.tensor(), to);
      if (r == to) group.transport().receive(values.tensor(), from);
    });
  };
  const Picoseconds inside = pass(0, 1), between = pass(2, 0);
  REQUIRE(inside == (r == 0 ? 40'000 : r == 1 ? 1'040'000 : 0));
  // Rank 0 has been at 40,000 when the message left rank 2 at 0.
  REQUIRE(between == (r == 2 ? 4'000'000 : r == 0 ? 24'000'000 - 40'000 : 0));
}

TEST_CASE("LinkTransport: a hierarchical all-reduce takes the time of its rings")
{
  const int N = world().ranks();
  if (N != 4) return;
  ClockedGroup pairs(Algorithm::hierarchical, "1us,100GB/s,20us,1GB/s,2", 2);
  Bytes values(4000);  // 16,000 bytes: 4,000 a shard, two shards a column, in messages of their own
  const Picoseconds time = pairs.time_of([&](Group& group) { all_reduce_sum(values.tensor(), group); });
  REQUIRE(time == 2 * (1'000'000 + 8'000 * 10) + 2 * (20'000'000 + 4'000 * 1000));
}

TEST_CASE("LinkTransport: a message carries the time of its sender, and waiting for it is exposed")
{
  const int r = world().rank();
  if (world().ranks() == 1) return;
  ClockedGroup ring(Algorithm::ring);
  Bytes values(10);
  if (r == 0) {
    ring.clock.charge_compute(70'000'000);
    ring.group->transport().send(values.tensor(), 1);
    REQUIRE(ring.clock.step() ==
            VirtualStep{.step = 70'004'000, .compute = 70'000'000, .exposed = 4'000, .flops = 70'000'000});
  } else if (r == 1) {
    ring.clock.charge_compute(1'000'000);
    ring.group->transport().receive(values.tensor(), 0);
    REQUIRE(ring.clock.step() ==
            VirtualStep{.step = 75'004'000, .compute = 1'000'000, .exposed = 74'004'000, .flops = 1'000'000});
  }
}

TEST_CASE("LinkTransport: several messages of one start leave one after the other")
{
  const int N = world().ranks(), r = world().rank();
  ClockedGroup ring(Algorithm::ring);
  Bytes values(1000), empty(0);
  Transport& transport = ring.group->transport();
  std::vector<Transfer> transfers{{Transfer::Direction::send, empty.tensor(), 0}};
  if (r == 0)
    for (int to = 1; to < N; ++to) transfers.push_back({Transfer::Direction::send, values.tensor(), to});
  else
    transfers.push_back({Transfer::Direction::receive, values.tensor(), 0});
  transport.finish(transport.start(transfers));
  REQUIRE(ring.clock.now() == Moment{r == 0 ? (N - 1) * beta * 4000 : alpha + r * beta * 4000});
}

TEST_CASE("LinkTransport: departure times are not counted as traffic")
{
  GroupForTest plain(Algorithm::ring);
  ClockedGroup clocked(Algorithm::ring);
  Bytes values(12345);
  all_reduce_sum(values.tensor(), plain.group);
  all_reduce_sum(values.tensor(), *clocked.group);
  REQUIRE(clocked.base.traffic.of("clocked") == plain.traffic.of("world"));
}

TEST_CASE(
    "VirtualClock: a program with a queue takes the same time however its threads run, and as computed by hand")
{
  const int N = world().ranks();
  const std::int64_t n = 12 * 1000;  // elements, divided by all N here
  Bytes one(n), two(2 * n);
  const Picoseconds first = 2 * (N - 1) * (alpha + beta * 4 * n / N),
                    second = 2 * (N - 1) * (alpha + beta * 8 * n / N);
  // Handed over at 1,000,000 and 3,000,000; the program waits at 33,000,000 and updates in 4,000,000.
  const Picoseconds first_done = 1'000'000 + first,
                    second_done = std::max<Picoseconds>(first_done, 3'000'000) + second;
  const Picoseconds exposed = std::max<Picoseconds>(0, second_done - 33'000'000);
  const VirtualStep expected{37'000'000 + exposed, 37'000'000, exposed, first + second, 37'000'000};
  for (const int nap_ms : {0, 3, 10}) {
    ClockedGroup clocked(Algorithm::ring);
    REQUIRE(overlapped_step(clocked, one, two, nap_ms) == expected);
  }
  for (std::uint32_t seed = 1; seed <= 5; ++seed) {
    ClockedGroup clocked(Algorithm::ring, "5us,10GB/s", 0, seed);
    REQUIRE(overlapped_step(clocked, one, two, 0) == expected);
  }
}
