#include <cstdlib>
#include <vector>

#include "common/base/error.hpp"
#include "common/program/wait.hpp"
#include "tests/catch.hpp"

using namespace rankwise;
using namespace std::chrono_literals;
using std::chrono::nanoseconds;

namespace {

/// Time that passes only while a wait looks, pauses or sleeps.
class FakeClock final : public WaitClock {
 public:
  nanoseconds now() override { return now_; }
  void pause() override
  {
    now_ += 100ns;
    ++pauses;
  }
  void sleep(nanoseconds time) override
  {
    now_ += time + 10us;  // as late as a system is
    naps.push_back(time);
    waited_before_nap.push_back(now_ - time - 10us - begin);
  }
  nanoseconds spins() override { return spin; }

  /// Time passes otherwise.
  void pass(nanoseconds time) { now_ += time; }

  nanoseconds begin{1s}, spin = spin_time;
  int pauses = 0;
  std::vector<nanoseconds> naps, waited_before_nap;

 private:
  nanoseconds now_{1s};
};

/// A condition that holds from a moment on, counted from the clock's begin; a look takes 100 ns.
auto holds_after(FakeClock& clock, nanoseconds time)
{
  return [&clock, time] {
    clock.pass(100ns);
    return clock.now() - clock.begin >= time;
  };
}

}  // namespace

TEST_CASE("spin: a condition that holds at once is checked once")
{
  FakeClock clock;
  int looks = 0;
  CHECK(spin([&] { return ++looks == 1; }, clock));
  spin_then_nap([&] { return ++looks == 2; }, clock);
  CHECK(looks == 2);
  CHECK(clock.pauses == 0);
  CHECK(clock.naps.empty());
}

TEST_CASE("spin: polls for spin_time, and never sleeps")
{
  FakeClock clock;
  CHECK_FALSE(spin(holds_after(clock, 1s), clock));
  CHECK(clock.now() - clock.begin >= spin_time);
  CHECK(clock.now() - clock.begin < spin_time + 1us);
  CHECK(clock.naps.empty());

  FakeClock in_time;
  CHECK(spin(holds_after(in_time, spin_time - 1us), in_time));
  CHECK(in_time.naps.empty());
}

TEST_CASE("spin_then_nap: no nap if the condition holds within spin_time")
{
  FakeClock clock;
  spin_then_nap(holds_after(clock, spin_time - 1us), clock);
  CHECK(clock.naps.empty());
  CHECK(clock.pauses > 50);
}

TEST_CASE("spin_then_nap: naps begin after spin_time, grow with the wait and are bounded")
{
  FakeClock clock;
  spin_then_nap(holds_after(clock, 20ms), clock);
  REQUIRE(clock.naps.size() > 100);
  CHECK(clock.waited_before_nap.front() >= spin_time);
  CHECK(clock.waited_before_nap.front() < spin_time + 1us);
  for (std::size_t i = 0; i < clock.naps.size(); ++i) {
    REQUIRE(clock.naps[i] > 0ns);
    REQUIRE(clock.naps[i] <= longest_nap);
    REQUIRE(clock.naps[i] <= clock.waited_before_nap[i] / nap_part);
    if (i > 0) REQUIRE(clock.naps[i] >= clock.naps[i - 1]);
  }
  CHECK(clock.naps.back() == longest_nap);
  CHECK(clock.now() - clock.begin <= 20ms + longest_nap + 10us + 1us);
  // Once it naps it looks no oftener than that.
  CHECK(clock.pauses <= spin_time / 100ns);
}

TEST_CASE("spin_then_nap: a poll that makes progress restarts the wait")
{
  FakeClock clock;
  int looks = 0;
  // Each look moves messages for longer than a look that finds nothing takes.
  spin_then_nap(
      [&] {
        clock.pass(2 * idle_look);
        return ++looks == 100;
      },
      clock);
  CHECK(clock.naps.empty());
}

TEST_CASE("spin_then_nap: an active wait never sleeps, a passive one never spins")
{
  FakeClock active;
  active.spin = nanoseconds::max();
  spin_then_nap(holds_after(active, 20ms), active);
  CHECK(active.naps.empty());

  FakeClock passive;
  passive.spin = 0ns;
  spin_then_nap(holds_after(passive, 20ms), passive);
  CHECK(passive.pauses == 0);
  CHECK_FALSE(spin(holds_after(passive, 1s), passive));
  CHECK(passive.pauses == 0);
}

TEST_CASE("wait_policy: what RANKWISE_WAITS says, brief unless it is set")
{
  const char* const before = std::getenv("RANKWISE_WAITS");
  REQUIRE((before == nullptr || std::string_view(before) == "brief"));
  unsetenv("RANKWISE_WAITS");
  CHECK(wait_policy() == WaitPolicy::brief);
  CHECK(wait_clock().spins() == spin_time);
  setenv("RANKWISE_WAITS", "active", 1);
  CHECK(wait_policy() == WaitPolicy::active);
  setenv("RANKWISE_WAITS", "passive", 1);
  CHECK(wait_policy() == WaitPolicy::passive);
  setenv("RANKWISE_WAITS", "patient", 1);
  CHECK_THROWS_AS(wait_policy(), UserError);
  unsetenv("RANKWISE_WAITS");
}
