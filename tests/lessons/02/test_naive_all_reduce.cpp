// The naive all-reduce of lesson 02: its sum, and its cost beside the formulas.

#include "lessons/02_collectives/naive_all_reduce.hpp"
#include "lessons/02_collectives/schedule.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"

using namespace rankwise;

TEST_CASE("naive_all_reduce_sum: every rank has the sum, and the cost is the measured traffic")
{
  GroupForTest with(Algorithm::ring);
  const int N = world().ranks(), r = world().rank();
  for (const std::int64_t n : {0, 1, 1001, 70001}) {
    INFO("n = " << n);
    Guarded<float> values(n, r);
    with.traffic.clear();
    naive_all_reduce_sum(values.tensor(), with.group);
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < n; ++i) wrong += values.at(i) != sum_at(N, i);
    CHECK(wrong == 0);
    CHECK(values.intact());
    CHECK(naive_cost(4 * n, N, r, {}).sent == with.traffic.total());
  }
}

TEST_CASE("naive_cost: the time is that of its messages one after the other at rank 0")
{
  MessageLog log;
  MemoryLedger memory;
  TrafficLedger traffic;
  const std::unique_ptr<Device> device = make_cpu_device();
  const std::unique_ptr<Stream> stream = device->make_stream();
  const GroupSetup setup{
      .memory = {device.get(), &memory}, .stream = stream.get(), .traffic = &traffic, .log = &log};
  Group group("world", Communicator::world(), setup);
  const AlphaBeta message{3e-6, 0.25e-9};
  for (const std::int64_t n : {0, 1, 1001}) {
    Guarded<float> values(n, world().rank());
    log.events.clear();
    log.recording = true;
    naive_all_reduce_sum(values.tensor(), group);
    log.recording = false;
    const double played = play(gather_events(log.events, group.communicator()), message).end_s;
    CHECK(naive_cost(4 * n, world().ranks(), 0, message).time_s == Approx(played).epsilon(1e-12));
    CHECK(naive_cost(4 * n, world().ranks(), world().rank(), message).time_s == Approx(played).epsilon(1e-12));
  }
}

TEST_CASE("naive_cost: figures")
{
  const AlphaBeta message{1e-6, 1e-9};  // a message of 1000 bytes: 2 us
  CHECK(naive_cost(1000, 5, 0, message).sent == Traffic{.messages = 4, .bytes = 4000});
  CHECK(naive_cost(1000, 5, 3, message).sent == Traffic{.messages = 1, .bytes = 1000});
  CHECK(naive_cost(1000, 5, 3, message).time_s == Approx(16e-6));
  CHECK(naive_cost(1000, 1, 0, message).time_s == 0);
  CHECK(naive_cost(0, 5, 0, message).sent == Traffic{});
}
