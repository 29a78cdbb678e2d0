// The schedule of lesson 11: its actions, the length of a step, and activations in flight.

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/error.hpp"
#include "lessons/11_zero_bubble/zero_bubble_schedule.hpp"
#include "lessons/parallel/pipeline/schedule_check.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

constexpr ActionKind F = ActionKind::forward, B = ActionKind::backward_input, W = ActionKind::backward_weights;

}  // namespace

TEST_CASE("zero_bubble: the actions of each rank, by hand")
{
  const PipelineSchedule schedule = zero_bubble(3, 4);
  CHECK(schedule.name == "zero-bubble");
  CHECK((schedule.ranks == 3 && schedule.virtual_stages == 1 && schedule.micro_batches == 4));
  CHECK(schedule.actions[0] == std::vector<Action>{{F, 0, 0},
                                                   {F, 1, 0},
                                                   {F, 2, 0},
                                                   {B, 0, 0},
                                                   {W, 0, 0},
                                                   {F, 3, 0},
                                                   {B, 1, 0},
                                                   {W, 1, 0},
                                                   {B, 2, 0},
                                                   {W, 2, 0},
                                                   {B, 3, 0},
                                                   {W, 3, 0}});
  CHECK(schedule.actions[2] == std::vector<Action>{{F, 0, 2},
                                                   {B, 0, 2},
                                                   {F, 1, 2},
                                                   {B, 1, 2},
                                                   {F, 2, 2},
                                                   {B, 2, 2},
                                                   {W, 0, 2},
                                                   {F, 3, 2},
                                                   {B, 3, 2},
                                                   {W, 1, 2},
                                                   {W, 2, 2},
                                                   {W, 3, 2}});
}

TEST_CASE("zero_bubble: 3 m+p-1 units, and every rank keeps p, for all p and m >= p")
{
  for (int p = 1; p <= 8; ++p)
    for (int m = p; m <= 32; ++m) {
      INFO("p = " << p << ", m = " << m);
      const PipelineSchedule schedule = zero_bubble(p, m);
      const TimedSchedule timed = check_schedule(schedule);
      CHECK(timed.length == 3 * m + p - 1);
      for (int rank = 0; rank < p; ++rank) CHECK(timed.busy(rank) == 3 * m);
      CHECK(timed.in_flight == std::vector<int>(static_cast<std::size_t>(p), p));
      CHECK(schedule.idle_formula == Approx(timed.idle_share()).margin(1e-12));
    }
  CHECK(zero_bubble(4, 8).idle_formula == Approx(3.0 / 27));
}

TEST_CASE("zero_bubble: each rank is idle for (p-1)(F+B-W) where W is no longer than F and B")
{
  for (std::int64_t f = 1; f <= 5; ++f)
    for (std::int64_t b = 1; b <= 5; ++b)
      for (std::int64_t w = 0; w <= std::min(f, b); ++w)
        for (const auto& [p, m] : {std::pair{1, 2}, {2, 2}, {3, 8}, {4, 4}, {4, 9}, {8, 24}}) {
          INFO("F = " << f << ", B = " << b << ", W = " << w << ", p = " << p << ", m = " << m);
          const TimedSchedule timed = check_schedule(zero_bubble(p, m), ActionCosts{f, b, w});
          CHECK(timed.busy(0) == m * (f + b + w));
          CHECK(timed.length - timed.busy(0) == (p - 1) * (f + b - w));
        }
  // A longer W stands in the way of B: the condition is needed.
  CHECK(check_schedule(zero_bubble(4, 8), ActionCosts{1, 3, 2}).length > 8 * 6 + 3 * (1 + 3 - 2));
  CHECK(check_schedule(zero_bubble(4, 8), ActionCosts{3, 1, 2}).length > 8 * 6 + 3 * (3 + 1 - 2));
}

TEST_CASE("zero_bubble: drawn, W as capital letters")
{
  CHECK(draw(check_schedule(zero_bubble(2, 2)), 14) ==
        "rank  0 |0011..aaAAbbBB|\n"
        "rank  1 |..00aa11bbAABB|\n");
}

TEST_CASE("zero_bubble: fewer micro-batches than ranks are refused")
{
  CHECK_THROWS_WITH(zero_bubble(4, 3), Contains("3 micro-batches") && Contains("4 ranks"));
  CHECK_THROWS_AS(zero_bubble(0, 4), Error);
}
