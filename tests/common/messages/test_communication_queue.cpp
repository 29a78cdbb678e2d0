// Collectives that overlap with computation: their order, waiting, their times, and that none is lost.

#include <atomic>
#include <chrono>
#include <thread>

#include "common/messages/communication_queue.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"
#include "tests/eventually.hpp"

using namespace rankwise;

namespace {

/// A vector of this rank's values, and the sum over the ranks that it should become.
struct Summed {
  explicit Summed(std::int64_t n, int shift) : values(static_cast<std::size_t>(n))
  {
    for (std::int64_t i = 0; i < n; ++i) {
      values[static_cast<std::size_t>(i)] = static_cast<float>(value_at(world().rank(), i + shift));
      expected.push_back(static_cast<float>(sum_at(world().ranks(), i + shift)));
    }
  }
  Tensor tensor() { return Tensor(std::span<float>(values), {static_cast<std::int64_t>(values.size())}); }

  std::vector<float> values, expected;
};

}  // namespace

TEST_CASE("CommunicationQueue: collectives run in order while the program computes, with every algorithm")
{
  for (const Algorithm algorithm : {Algorithm::ring, Algorithm::halving, Algorithm::shared, Algorithm::tree}) {
    GroupForTest test(algorithm);
    TimeLedger time;
    CommunicationQueue queue(test.group, time);
    std::vector<Summed> sums;
    for (int k = 0; k < 12; ++k) sums.emplace_back(1 + 3001 * (k % 4), k);
    std::vector<Pending> pending;
    for (Summed& sum : sums)
      pending.push_back(queue.start("a sum", [tensor = sum.tensor()](Group& g) { all_reduce_sum(tensor, g); }));
    double busy = 0;
    for (int i = 1; i < 200000; ++i) busy += 1.0 / i;
    REQUIRE(busy > 12);
    for (std::size_t k = pending.size(); k-- > 0;) {  // whatever is waited for first
      pending[k].wait();
      REQUIRE(sums[k].values == sums[k].expected);
    }
    std::int64_t ranks = 1;  // the group is free again
    all_reduce_sum(ranks, test.group);
    REQUIRE(ranks == world().ranks());
  }
}

TEST_CASE("CommunicationQueue: waiting is exposed time, work is hidden time")
{
  GroupForTest test(Algorithm::ring);
  TimeLedger time;
  CommunicationQueue queue(test.group, time);
  time.record();
  // Each takes 20 ms from the moment at which it is waited for.
  std::atomic<int> waited_for = 0;
  const auto nap = [&](int before) {
    return [&, before](Group&) {
      eventually([&] { return waited_for == before && !time.open_span().empty(); });
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    };
  };
  Pending first = queue.start("first", nap(0)), second = queue.start("second", nap(1));
  const Stopwatch clock;
  first.wait();
  ++waited_for;
  second.wait();
  REQUIRE(time.seconds(Work::exposed) <= clock.seconds());
  REQUIRE(time.seconds(Work::exposed) >= 0.04);
  REQUIRE(queue.time().seconds(Work::hidden) >= 0.04);
  const std::vector<TraceEvent> events = queue.time().events();
  REQUIRE(events.size() == 2);
  REQUIRE(events[0].name == "first");
  REQUIRE(events[1].start_ns >= events[0].start_ns + events[0].duration_ns);
}

TEST_CASE("Pending: can be handed on, and waiting twice does nothing")
{
  GroupForTest test(Algorithm::ring);
  TimeLedger time;
  CommunicationQueue queue(test.group, time);
  int done = 0;
  Pending first = queue.start("one", [&](Group&) { ++done; });
  Pending moved = std::move(first);
  first.wait();  // NOLINT: nothing is left to wait for
  moved.wait();
  moved.wait();
  REQUIRE(done == 1);
  Pending next;
  next = queue.start("two", [&](Group&) { ++done; });
  next.wait();
  REQUIRE(done == 2);
}

TEST_CASE("Pending: an exception on its way out does not wait")
{
  GroupForTest test(Algorithm::ring);
  TimeLedger time;
  const auto fails = [&] {
    CommunicationQueue queue(test.group, time);
    const Pending pending = queue.start("never waited for", [](Group&) {});
    throw Error("something else");
  };
  REQUIRE_THROWS_WITH(fails(), Contains("something else"));
}

TEST_CASE(
    "CommunicationQueue: an exception on its way out lets the collective that is under way end, and starts no "
    "other")
{
  GroupForTest test(Algorithm::ring);
  TimeLedger time;
  std::atomic<bool> begun = false, ended = false, other = false;
  const auto fails = [&] {
    CommunicationQueue queue(test.group, time);
    const Pending first = queue.start("under way", [&](Group&) {
      begun = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ended = true;
    });
    const Pending second = queue.start("after it", [&](Group&) { other = true; });
    eventually([&] { return begun.load(); });
    throw Error("something else");
  };
  REQUIRE_THROWS_WITH(fails(), Contains("something else"));
  CHECK(ended);
  CHECK(!other);
}

TEST_CASE("CommunicationQueue: the virtual clock distinguishes hidden from exposed communication")
{
  GroupForTest test(Algorithm::ring);
  VirtualClock clock(parse_link("0us,1GB/s"), parse_flops("1GFLOP/s"));
  test.setup.clock = &clock;
  Group group("virtual", Communicator::world(), test.setup);
  TimeLedger time;
  CommunicationQueue queue(group, time);
  const int N = world().ranks();
  Summed sum(1000 * 12, 0);  // 48 kB: 48 us (N-1)/N a half on a ring
  clock.step();
  Pending pending = queue.start("sum", [&](Group& g) { all_reduce_sum(sum.tensor(), g); });
  clock.charge_compute(30'000);  // 30 us
  pending.wait();
  const VirtualStep step = clock.step();
  const Picoseconds communication = 96'000'000LL * (N - 1) / N;
  REQUIRE(step.compute == 30'000'000);
  REQUIRE(step.communication == communication);
  REQUIRE(step.exposed == std::max<Picoseconds>(0, communication - 30'000'000));
}
