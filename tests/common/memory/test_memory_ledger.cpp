#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common/memory/memory_ledger.hpp"
#include "common/program/time_ledger.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

template <class F>
std::string message_of(F&& f)
{
  try {
    f();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("name_of: categories and tiers are called as in reports")
{
  CHECK(name_of(Category::parameters) == "parameters");
  CHECK(name_of(Category::gradients) == "gradients");
  CHECK(name_of(Category::optimizer) == "optimizer");
  CHECK(name_of(Category::activations) == "activations");
  CHECK(name_of(Category::communication) == "communication");
  CHECK(name_of(Category::workspace) == "workspace");
  CHECK(name_of(Category::staging) == "staging");
  CHECK(name_of(Category::exact_sums) == "exact");
  STATIC_REQUIRE(static_cast<int>(Category::exact_sums) + 1 == category_count);
  CHECK(name_of(Tier::device) == "device");
  CHECK(name_of(Tier::host) == "host");
  CHECK(name_of(Tier::disk) == "disk");
  STATIC_REQUIRE(static_cast<int>(Tier::disk) + 1 == tier_count);
}

TEST_CASE("CategoryBytes: totals and compares, and lists what is not zero")
{
  CategoryBytes bytes;
  CHECK(bytes.total() == 0);
  CHECK(bytes.table() == "total                          0");
  bytes[Category::parameters] = 882'176;
  bytes[Category::communication] = 9'000'000'000;
  CHECK(bytes.total() == 9'000'882'176);
  CHECK(bytes.table() ==
        "parameters               882,176\n"
        "communication      9,000,000,000\n"
        "total              9,000,882,176");
  CategoryBytes other = bytes;
  CHECK(other == bytes);
  other[Category::staging] = 1;
  CHECK_FALSE(other == bytes);
}

TEST_CASE("CategoryBytes: adds up category by category")
{
  CategoryBytes sum, other;
  sum[Category::parameters] = 3;
  sum[Category::gradients] = 5;
  other[Category::gradients] = 7;
  other[Category::exact_sums] = 11;
  CategoryBytes& same = sum += other;
  CHECK(&same == &sum);
  CHECK(sum[Category::parameters] == 3);
  CHECK(sum[Category::gradients] == 12);
  CHECK(sum[Category::exact_sums] == 11);
  CHECK(sum.total() == 26);
  CHECK(other.total() == 18);
}

TEST_CASE("MemoryLedger: current bytes follow allocations and releases")
{
  MemoryLedger ledger;
  CHECK(ledger.limit_bytes() == 0);
  ledger.enter(Category::parameters, Tier::device, 100, "a");
  ledger.enter(Category::parameters, Tier::device, 50, "b");
  ledger.enter(Category::gradients, Tier::device, 30, "c");
  ledger.enter(Category::gradients, Tier::host, 7, "d");
  ledger.enter(Category::optimizer, Tier::disk, 5, "e");
  ledger.leave(Category::parameters, Tier::device, 100);
  CHECK(ledger.current(Tier::device)[Category::parameters] == 50);
  CHECK(ledger.current(Tier::device)[Category::gradients] == 30);
  CHECK(ledger.current(Tier::device).total() == 80);
  CHECK(ledger.current(Tier::host).total() == 7);
  CHECK(ledger.current(Tier::disk).total() == 5);
}

TEST_CASE("MemoryLedger: the peak of the total is that of one moment, not the sum of the categories' peaks")
{
  MemoryLedger ledger;
  ledger.enter(Category::activations, Tier::device, 100, "forward");
  ledger.leave(Category::activations, Tier::device, 100);
  ledger.enter(Category::gradients, Tier::device, 60, "backward");
  ledger.enter(Category::activations, Tier::device, 10, "rest");
  ledger.leave(Category::gradients, Tier::device, 60);
  CHECK(ledger.peak(Tier::device)[Category::activations] == 100);
  CHECK(ledger.peak(Tier::device)[Category::gradients] == 60);
  CHECK(ledger.peak(Tier::device).total() == 160);
  CHECK(ledger.peak_total(Tier::device) == 100);
  CHECK(ledger.peak_total(Tier::host) == 0);
  ledger.enter(Category::workspace, Tier::device, 91, "more");
  CHECK(ledger.peak_total(Tier::device) == 101);
}

TEST_CASE("MemoryLedger: an allocation beyond the limit is refused with requested and allocated bytes")
{
  MemoryLedger ledger(2000);
  ledger.enter(Category::parameters, Tier::device, 1200, "parameters");
  ledger.enter(Category::optimizer, Tier::device, 300, "moments");
  CHECK(message_of([&] { ledger.enter(Category::gradients, Tier::device, 501, "gradients of block 3"); }) ==
        "out of device memory: gradients of block 3 needs 501 bytes, 1,500 of 2,000 are taken:\n"
        "parameters                 1,200\n"
        "optimizer                    300\n"
        "total                      1,500");
  // What was refused is not counted; the limit itself may be reached.
  CHECK(ledger.current(Tier::device).total() == 1500);
  CHECK(ledger.peak_total(Tier::device) == 1500);
  CHECK(ledger.peak(Tier::device)[Category::gradients] == 0);
  ledger.enter(Category::gradients, Tier::device, 500, "gradients of block 2");
  CHECK(ledger.current(Tier::device).total() == 2000);
  CHECK_THROWS_AS(ledger.enter(Category::gradients, Tier::device, 1, "one byte"), Error);
}

TEST_CASE("MemoryLedger: host and disk have no limit")
{
  MemoryLedger ledger(10);
  CHECK_NOTHROW(ledger.enter(Category::optimizer, Tier::host, 1'000'000, "moments"));
  CHECK_NOTHROW(ledger.enter(Category::optimizer, Tier::disk, 1'000'000, "moments"));
  CHECK_NOTHROW(ledger.enter(Category::parameters, Tier::device, 10, "parameters"));
}

TEST_CASE("MemoryLedger: after record() every allocation and release is an event with the device's bytes")
{
  MemoryLedger ledger;
  ledger.enter(Category::parameters, Tier::device, 100, "a");
  CHECK(ledger.events().empty());
  const std::int64_t before_ns = event_clock_ns();
  ledger.record();
  ledger.enter(Category::gradients, Tier::device, 30, "b");
  ledger.enter(Category::gradients, Tier::host, 7, "c");
  ledger.leave(Category::gradients, Tier::host, 7);
  ledger.leave(Category::parameters, Tier::device, 60);
  const std::vector<MemoryEvent> events = ledger.events();
  REQUIRE(events.size() == 3);  // the first one is what there was; the host's are left out
  const auto held = [&](std::size_t event, Category category) { return events[event].bytes[category]; };
  CHECK(held(0, Category::parameters) == 100);
  CHECK(events[0].bytes.total() == 100);
  CHECK(held(1, Category::gradients) == 30);
  CHECK(events[1].bytes.total() == 130);
  CHECK(held(2, Category::parameters) == 40);
  CHECK(events[2].bytes.total() == 70);
  CHECK(events[2].bytes == ledger.current(Tier::device));
  CHECK(before_ns <= events[0].time.wall_ns);
  CHECK(events[0].time.wall_ns <= events[1].time.wall_ns);
  CHECK(events[1].time.wall_ns <= events[2].time.wall_ns);
  CHECK(events[2].time.wall_ns <= event_clock_ns());
}

TEST_CASE("MemoryLedger: a buffer that is refused is no event")
{
  MemoryLedger ledger(10);
  ledger.record();
  CHECK_THROWS_AS(ledger.enter(Category::gradients, Tier::device, 11, "too much"), Error);
  CHECK(ledger.events().size() == 1);
}

TEST_CASE("MemoryLedger: two threads count together")
{
  MemoryLedger ledger;
  ledger.record();
  constexpr int buffers = 20'000;
  const auto make_buffers = [&ledger](Category category) {
    for (int i = 0; i < buffers; ++i) {
      ledger.enter(category, Tier::device, 3, "one that stays");
      ledger.enter(category, Tier::device, 1, "one that goes");
      ledger.leave(category, Tier::device, 1);
    }
  };
  std::thread other(make_buffers, Category::communication);
  make_buffers(Category::gradients);
  make_buffers(Category::communication);
  other.join();
  CHECK(ledger.current(Tier::device)[Category::gradients] == 3 * buffers);
  CHECK(ledger.current(Tier::device)[Category::communication] == 6 * buffers);
  CHECK(ledger.peak_total(Tier::device) >= 9 * buffers);
  const std::vector<MemoryEvent> events = ledger.events();
  REQUIRE(events.size() == 1 + 9 * buffers);
  CHECK(events.back().bytes == ledger.current(Tier::device));
  for (std::size_t i = 1; i < events.size(); ++i)
    if (events[i].time.wall_ns < events[i - 1].time.wall_ns)
      FAIL("event " << i << " is earlier than the one before");
}

TEST_CASE("check_memory_limit: refuses a plan that does not fit, with its categories and the remedy")
{
  CategoryBytes plan;
  plan[Category::parameters] = 882'176;
  plan[Category::gradients] = 882'176;
  plan[Category::optimizer] = 1'764'352;
  const std::string text = message_of([&] { check_memory_limit(plan, 3'528'703, "Try --micro-batch=1."); });
  CHECK(text ==
        "error: --memory-limit=3,528,703 is too small: this run needs 3,528,704 bytes a rank.\n"
        "       parameters               882,176\n"
        "       gradients                882,176\n"
        "       optimizer              1,764,352\n"
        "       total                  3,528,704\n"
        "       Try --micro-batch=1.");
  CHECK_THROWS_AS(check_memory_limit(plan, 1, "Try more."), UserError);
}

TEST_CASE("check_memory_limit: accepts a plan that just fits, and any plan without a limit")
{
  CategoryBytes plan;
  plan[Category::activations] = 1000;
  CHECK_NOTHROW(check_memory_limit(plan, 1000, "unused"));
  CHECK_NOTHROW(check_memory_limit(plan, 0, "unused"));
  CHECK_NOTHROW(check_memory_limit(CategoryBytes(), 1, "unused"));
}
