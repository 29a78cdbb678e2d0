// Schedules made by hand: no message is sent here.

#include "common/base/error.hpp"
#include "common/messages/layers/virtual_clock.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

constexpr double rate = 1e12;  // one operation takes a picosecond

/// A clock whose collectives just take a time.
struct ClockForTest : VirtualClock {
  ClockForTest() : VirtualClock(LinkOptions{}, rate) {}

  /// The queue makes a collective of a length.
  Moment queue(Moment handed, Picoseconds length, std::string_view name = "queued")
  {
    begin(handed, name);
    arrive({now().since_start + length});
    return end();
  }
};

}  // namespace

TEST_CASE("VirtualClock: arithmetic takes flops / rate")
{
  VirtualClock clock({}, 3e12);
  clock.charge_compute(300);
  clock.charge_compute(1);  // a third of a picosecond
  clock.charge_compute(2);
  clock.charge_compute(0);
  REQUIRE(clock.now() == Moment{101});
  REQUIRE(clock.step() == VirtualStep{.step = 101, .compute = 101, .flops = 303});
  REQUIRE(clock.step() == VirtualStep{});
  REQUIRE_THROWS_WITH(clock.charge_compute(-3), Contains("virtual clock"));
  REQUIRE_THROWS_AS(VirtualClock({}, 0), Error);
}

TEST_CASE("VirtualClock: communication during arithmetic is hidden, the rest is exposed")
{
  ClockForTest clock;
  clock.charge_compute(10);
  const Moment first = clock.handed_over();
  clock.charge_compute(10);
  const Moment second = clock.handed_over();
  const Moment first_done = clock.queue(first, 5), second_done = clock.queue(second, 5);
  REQUIRE(first_done == Moment{15});
  REQUIRE(second_done == Moment{25});  // begins when it is handed over, at 20
  clock.wait_for(first_done);
  REQUIRE(clock.now() == Moment{20});
  clock.wait_for(second_done);
  REQUIRE(clock.step() == VirtualStep{.step = 25, .compute = 20, .exposed = 5, .communication = 10, .flops = 20});
}

TEST_CASE("VirtualClock: the queue makes one collective after the other")
{
  ClockForTest clock;
  const Moment first = clock.handed_over();
  clock.charge_compute(2);
  const Moment second = clock.handed_over();
  REQUIRE(clock.queue(first, 7) == Moment{7});
  REQUIRE(clock.queue(second, 4) == Moment{11});
  clock.wait_for({11});
  clock.wait_for({7});
  REQUIRE(clock.step() == VirtualStep{.step = 11, .compute = 2, .exposed = 9, .communication = 11, .flops = 2});
}

TEST_CASE("VirtualClock: times do not depend on when the queue's thread runs")
{
  const auto run = [](bool late) {
    ClockForTest clock;
    clock.charge_compute(3);
    const Moment handed = clock.handed_over();
    Moment done;
    if (!late) done = clock.queue(handed, 8);
    clock.charge_compute(6);
    if (late) done = clock.queue(handed, 8);
    clock.wait_for(done);
    return clock.step();
  };
  REQUIRE(run(false) == VirtualStep{.step = 11, .compute = 9, .exposed = 2, .communication = 8, .flops = 9});
  REQUIRE(run(true) == run(false));
}

TEST_CASE("VirtualClock: a collective made without the queue is exposed to the end")
{
  ClockForTest clock;
  clock.charge_compute(10);
  clock.enter("all-reduce");
  clock.enter("all-reduce");  // of a second level
  clock.arrive({14});
  clock.leave();
  clock.arrive({16});
  clock.leave();
  clock.arrive({20});  // a message outside of collectives
  REQUIRE(clock.step() == VirtualStep{.step = 20, .compute = 10, .exposed = 10, .communication = 6, .flops = 10});
  const Moment handed = clock.handed_over();
  REQUIRE(clock.queue(handed, 1) == Moment{21});
}

TEST_CASE("VirtualClock: a link sends one message after the other, each lane on its own")
{
  ClockForTest clock;
  clock.charge_compute(5);
  REQUIRE(clock.depart(10) == Moment{5});
  REQUIRE(clock.depart(10) == Moment{15});
  clock.charge_compute(100);
  REQUIRE(clock.depart(10) == Moment{105});
  clock.begin({7}, "queued");
  REQUIRE(clock.depart(1) == Moment{7});
  clock.end();
}

TEST_CASE("VirtualClock: impossible calls are Errors")
{
  ClockForTest clock;
  REQUIRE_THROWS_WITH(clock.end(), Contains("had not begun"));
  REQUIRE_THROWS_WITH(clock.wait_for({}), Contains("had not been handed over"));
  clock.begin({}, "one");
  REQUIRE_THROWS_WITH(clock.begin({}, "two"), Contains("at once"));
  clock.end();
  clock.handed_over();
  REQUIRE_THROWS_WITH(clock.step(), Contains("while 1 collectives were under way"));
  REQUIRE_THROWS_WITH(clock.arrive({INT64_MAX - 1}), Contains("eight million seconds"));
}

TEST_CASE("VirtualClock: spans record each piece of work with its times, and a picture shows them")
{
  ClockForTest clock;
  clock.charge_compute(1, "of another step");
  clock.step();
  clock.charge_compute(4, "forward");
  const Moment handed = clock.handed_over();
  clock.charge_compute(2, "backward");
  const Moment done = clock.queue(handed, 4, "1");
  clock.wait_for(done);
  clock.enter("norm");
  clock.arrive({10});
  clock.leave();
  clock.charge_compute(1, "update");
  const std::vector<VirtualSpan> expected{{"forward", Lane::compute, {1}, {5}},
                                          {"backward", Lane::compute, {5}, {7}},
                                          {"update", Lane::compute, {10}, {11}},
                                          {"1", Lane::communication, {5}, {9}},
                                          {"norm", Lane::communication, {9}, {10}}};
  REQUIRE(clock.spans() == expected);
  REQUIRE(timeline(clock.spans(), 20) ==
          "compute       |ffffffffbbbb......uu|\n"
          "communication |........11111111nn..|\n");
  REQUIRE(timeline(clock.spans(), 5) ==
          "compute       |ffb.u|\n"
          "communication |..11.|\n");
  REQUIRE(timeline({}, 20).empty());
  clock.step();
  REQUIRE(clock.spans().empty());
}
