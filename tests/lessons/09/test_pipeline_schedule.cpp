// The schedules of lesson 09: their actions, the length of a step, activations in flight; and invalid schedules.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.hpp"
#include "lessons/parallel/pipeline/schedule_check.hpp"
#include "tests/catch.hpp"
#include "tests/lessons/09/in_halves.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

constexpr int most_ranks = 8, most_virtual_stages = 4, most_micro_batches = 32;

constexpr ActionKind F = ActionKind::forward, BW = ActionKind::backward, B = ActionKind::backward_input,
                     W = ActionKind::backward_weights;

/// Expected length and activations of a schedule of equal stages, in units of F = B = W.
struct Measures {
  std::int64_t length;
  std::int64_t busy;           ///< of each rank
  std::vector<int> in_flight;  ///< by rank
};

/// Compares a schedule with its expected length and activations.
void check_measures(const PipelineSchedule& schedule, const Measures& expected)
{
  INFO(schedule.name << ", p = " << schedule.ranks << ", v = " << schedule.virtual_stages
                     << ", m = " << schedule.micro_batches);
  const TimedSchedule timed = check_schedule(schedule);
  CHECK(timed.length == expected.length);
  for (int rank = 0; rank < schedule.ranks; ++rank) CHECK(timed.busy(rank) == expected.busy);
  CHECK(timed.in_flight == expected.in_flight);
  CHECK(schedule.idle_formula == Approx(timed.idle_share()).margin(1e-12));
}

/// f(rank) for each rank.
template <typename Function>
std::vector<int> by_rank(int ranks, const Function& f)
{
  std::vector<int> values;
  for (int rank = 0; rank < ranks; ++rank) values.push_back(f(rank));
  return values;
}

/// The checker's message for a schedule; empty if it accepts it.
std::string refusal(const PipelineSchedule& schedule)
{
  try {
    check_schedule(schedule);
  } catch (const NotImplemented&) {
    throw;
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

/// One of each kind.
std::vector<PipelineSchedule> examples()
{
  return {gpipe(3, 4), one_forward_one_backward(3, 5), interleaved(3, 2, 6),
          in_halves(one_forward_one_backward(3, 5)), forward_only(3, 2, 4)};
}

/// All forward passes of interleaved() in front of all backward passes.
PipelineSchedule forwards_first(int ranks, int virtual_stages, int micro_batches)
{
  PipelineSchedule schedule = interleaved(ranks, virtual_stages, micro_batches);
  for (std::vector<Action>& list : schedule.actions)
    std::stable_partition(list.begin(), list.end(), [](const Action& action) { return action.kind == F; });
  std::fill(schedule.max_in_flight.begin(), schedule.max_in_flight.end(), virtual_stages * micro_batches);
  return schedule;
}

/// The actions of stage @p stage of another warm-up than that of 1F1B.
std::vector<Action> with_warm_up(int warm_up, int stage, int micro_batches)
{
  std::vector<Action> list;
  for (int i = 0; i < micro_batches + warm_up; ++i) {
    if (i < micro_batches) list.push_back({F, i, stage});
    if (i >= warm_up) list.push_back({BW, i - warm_up, stage});
  }
  return list;
}

}  // namespace

// ---- The schedules --------------------------------------------------------------------------------------------------

TEST_CASE("one_forward_one_backward: the actions of each rank, by hand")
{
  const PipelineSchedule schedule = one_forward_one_backward(3, 4);
  CHECK(schedule.name == "1f1b");
  CHECK((schedule.ranks == 3 && schedule.virtual_stages == 1 && schedule.micro_batches == 4));
  CHECK(schedule.actions[0] ==
        std::vector<Action>{
            {F, 0, 0}, {F, 1, 0}, {F, 2, 0}, {BW, 0, 0}, {F, 3, 0}, {BW, 1, 0}, {BW, 2, 0}, {BW, 3, 0}});
  CHECK(schedule.actions[1] ==
        std::vector<Action>{
            {F, 0, 1}, {F, 1, 1}, {BW, 0, 1}, {F, 2, 1}, {BW, 1, 1}, {F, 3, 1}, {BW, 2, 1}, {BW, 3, 1}});
  CHECK(schedule.actions[2] ==
        std::vector<Action>{
            {F, 0, 2}, {BW, 0, 2}, {F, 1, 2}, {BW, 1, 2}, {F, 2, 2}, {BW, 2, 2}, {F, 3, 2}, {BW, 3, 2}});
  CHECK(schedule.max_in_flight == std::vector<int>{3, 2, 1});
}

TEST_CASE("one_forward_one_backward: as long as GPipe, with at most min(p - rank, m) in flight, for all p and m")
{
  for (int p = 1; p <= most_ranks; ++p)
    for (int m = 1; m <= most_micro_batches; ++m)
      check_measures(one_forward_one_backward(p, m),
                     {3 * (m + p - 1), 3 * m, by_rank(p, [&](int rank) { return std::min(p - rank, m); })});
}

TEST_CASE("gpipe: 3 (m+p-1) units and m in flight, for all p and m")
{
  for (int p = 1; p <= most_ranks; ++p)
    for (int m = 1; m <= most_micro_batches; ++m)
      check_measures(gpipe(p, m), {3 * (m + p - 1), 3 * m, std::vector<int>(static_cast<std::size_t>(p), m)});
}

TEST_CASE("interleaved: 3 (v m+p-1) units of a stage, and what Megatron's warm-up keeps, for all p, v and m")
{
  for (int p = 1; p <= most_ranks; ++p)
    for (int v = 1; v <= most_virtual_stages; ++v)
      for (int m = p; m <= most_micro_batches; m += p) {
        const PipelineSchedule schedule = interleaved(p, v, m);
        check_measures(schedule, {3 * (v * m + p - 1), 3 * v * m, by_rank(p, [&](int rank) {
                                    const int behind = p - 1 - rank;
                                    return std::min(v == 1 ? behind + 1 : 2 * behind + (v - 1) * p + 1, v * m);
                                  })});
        CHECK((v > 1 || schedule.actions == one_forward_one_backward(p, m).actions));
      }
}

TEST_CASE("forward_only: v m+p-1 units where m is a multiple of p, nothing kept, for all p, v and m")
{
  for (int p = 1; p <= most_ranks; ++p)
    for (int v = 1; v <= most_virtual_stages; ++v)
      for (int m = 1; m <= most_micro_batches; ++m) {
        const int left_out =
            v == 1 ? 0 : (p - m % p) % p;  // what the last group lacks, it lacks between two stages
        check_measures(forward_only(p, v, m), {v * m + p - 1 + (v - 1) * left_out, v * m,
                                               std::vector<int>(static_cast<std::size_t>(p), 0)});
      }
}

TEST_CASE("idle_formula: the shares for 4 ranks and 8 micro-batches")
{
  CHECK(gpipe(4, 8).idle_formula == Approx(3.0 / 11));
  CHECK(one_forward_one_backward(4, 8).idle_formula == Approx(3.0 / 11));
  CHECK(interleaved(4, 2, 8).idle_formula == Approx(3.0 / 19));
  CHECK(forward_only(4, 1, 8).idle_formula == Approx(3.0 / 11));
}

TEST_CASE("schedules: impossible sizes are refused")
{
  CHECK_THROWS_AS(gpipe(0, 4), Error);
  CHECK_THROWS_AS(gpipe(2, 0), Error);
  CHECK_THROWS_AS(one_forward_one_backward(0, 4), Error);
  CHECK_THROWS_AS(interleaved(2, 0, 4), Error);
  CHECK_THROWS_WITH(interleaved(2, 2, 3), Contains("3 micro-batches") && Contains("groups of 2"));
  CHECK_THROWS_AS(forward_only(2, 2, -1), Error);
}

TEST_CASE("describe: an action in words")
{
  CHECK(describe({F, 3, 1}) == "forward of micro-batch 3 in stage 1");
  CHECK(describe({BW, 0, 2}) == "backward of micro-batch 0 in stage 2");
  CHECK(name_of(B) == "backward-input");
  CHECK(name_of(W) == "backward-weights");
}

// ---- Times ----------------------------------------------------------------------------------------------------------

TEST_CASE("check_schedule: stages of different costs, by hand")
{
  // rank 0:  F0 0..1  F1 1..2  B0 9..12  B1 17..20
  // rank 1:  F0 1..3  B0 3..9  F1 9..11  B1 11..17, with the forward pass of the stage run again
  const std::vector<ActionCosts> costs{{1, 2, 1, 0}, {2, 2, 2, 2}};
  const TimedSchedule timed = check_schedule(one_forward_one_backward(2, 2), costs);
  const auto times = [&](std::size_t rank) {
    std::vector<std::pair<std::int64_t, std::int64_t>> all;
    for (const TimedAction& action : timed.actions[rank]) all.emplace_back(action.begin, action.end);
    return all;
  };
  using Times = std::vector<std::pair<std::int64_t, std::int64_t>>;
  CHECK(times(0) == Times{{0, 1}, {1, 2}, {9, 12}, {17, 20}});
  CHECK(times(1) == Times{{1, 3}, {3, 9}, {9, 11}, {11, 17}});
  CHECK(timed.length == 20);
  CHECK((timed.busy(0) == 8 && timed.busy(1) == 16));
  CHECK(timed.idle_share() == Approx(1.0 - 24.0 / 40));
}

TEST_CASE("ActionCosts: what is run again stands in front of each half")
{
  const ActionCosts costs{3, 4, 2, 10};
  CHECK(costs.of(F) == 3);
  CHECK(costs.of(BW) == 16);
  CHECK(costs.of(B) == 14);
  CHECK(costs.of(W) == 12);
}

TEST_CASE("draw: digits forwards, letters backwards, dots between")
{
  CHECK(draw(check_schedule(gpipe(2, 2)), 9) ==
        "rank  0 |01...aabb|\n"
        "rank  1 |.01aabb..|\n");
  CHECK(draw(check_schedule(in_halves(gpipe(2, 2))), 16) ==
        "rank  0 |0011....aaAAbbBB|\n"
        "rank  1 |..0011aaAAbbBB..|\n");
  CHECK(draw(check_schedule(gpipe(1, 11)), 33) == "rank  0 |01234567890aabbccddeeffgghhiijjkk|\n");
  CHECK_THROWS_AS(draw(check_schedule(gpipe(1, 1)), 0), Error);
}

// ---- Invalid schedules ----------------------------------------------------------------------------------------------

TEST_CASE("check_schedule: refuses each schedule from which any action is missing, or in which it stands twice")
{
  for (const PipelineSchedule& whole : examples())
    for (std::size_t rank = 0; rank < whole.actions.size(); ++rank)
      for (std::size_t number = 0; number < whole.actions[rank].size(); ++number) {
        const Action action = whole.actions[rank][number];
        INFO(whole.name << ", rank " << rank << ", " << describe(action));
        PipelineSchedule less = whole, more = whole;
        less.actions[rank].erase(less.actions[rank].begin() + static_cast<std::ptrdiff_t>(number));
        more.actions[rank].push_back(action);
        CHECK_THAT(refusal(less), Contains("rank " + std::to_string(rank)) &&
                                      Contains("micro-batch " + std::to_string(action.micro_batch) + " in stage"));
        CHECK(refusal(more) == "rank " + std::to_string(rank) + ", action " +
                                   std::to_string(whole.actions[rank].size()) + ", " + describe(action) +
                                   ": it has been done before");
      }
}

TEST_CASE("check_schedule: names what is missing")
{
  PipelineSchedule schedule = gpipe(2, 3);
  std::erase(schedule.actions[1], Action{BW, 2, 1});
  CHECK(refusal(schedule) == "rank 1: backward of micro-batch 2 in stage 1 is missing");
  std::erase(schedule.actions[1], Action{F, 2, 1});
  CHECK(refusal(schedule) == "rank 1: forward of micro-batch 2 in stage 1 is missing");
  schedule = in_halves(one_forward_one_backward(2, 3));
  schedule.actions[1].pop_back();
  CHECK(refusal(schedule) == "rank 1: backward-weights of micro-batch 2 in stage 1 is missing");
}

TEST_CASE("check_schedule: refuses an action before one that it depends on")
{
  PipelineSchedule schedule = one_forward_one_backward(2, 3);
  std::swap(schedule.actions[1][0], schedule.actions[1][1]);
  CHECK(refusal(schedule) ==
        "rank 1, action 0, backward of micro-batch 0 in stage 1: its forward pass has not been done");
  schedule = in_halves(one_forward_one_backward(2, 3));  // rank 0: F0 F1 B0 W0 ...
  std::swap(schedule.actions[0][2], schedule.actions[0][3]);
  CHECK(refusal(schedule) ==
        "rank 0, action 2, backward-weights of micro-batch 0 in stage 0: the gradient of its "
        "input has not been computed");
  schedule.actions[0][2] = {BW, 0, 0};  // and then its second half
  schedule.actions[0][3] = {W, 0, 0};
  CHECK(refusal(schedule) ==
        "rank 0, action 3, backward-weights of micro-batch 0 in stage 0: it has been done before");
}

TEST_CASE("check_schedule: refuses stages of other ranks and micro-batches out of range")
{
  PipelineSchedule schedule = gpipe(2, 3);
  schedule.actions[0][1].stage = 1;
  CHECK(refusal(schedule) == "rank 0, action 1, forward of micro-batch 1 in stage 1: that stage is on rank 1");
  for (const int stage : {-1, 2}) {
    schedule.actions[0][1].stage = stage;
    CHECK_THAT(refusal(schedule), Contains("rank 0, action 1") && Contains("there are 2 stages"));
  }
  for (const int micro_batch : {-1, 3}) {
    schedule.actions[0][1] = {F, micro_batch, 0};
    CHECK_THAT(refusal(schedule), Contains("rank 0, action 1") && Contains("there are 3 micro-batches"));
  }
}

TEST_CASE("check_schedule: refuses lists, max_in_flight and costs that do not match ranks and stages")
{
  PipelineSchedule schedule = gpipe(2, 3);
  CHECK_THROWS_WITH(check_schedule(schedule, std::vector<ActionCosts>(3)), Contains("3 stages"));
  schedule.max_in_flight.push_back(3);
  CHECK_THAT(refusal(schedule), Contains("3 values of max_in_flight"));
  schedule.max_in_flight.pop_back();
  schedule.actions.pop_back();
  CHECK_THAT(refusal(schedule), Contains("1 lists"));
  schedule.micro_batches = 0;
  CHECK_THAT(refusal(schedule), Contains("without"));
}

TEST_CASE("check_schedule: refuses messages that arrive in another order than that in which they are wanted")
{
  const auto swap_stage = [](PipelineSchedule& schedule, ActionKind kind,
                             int stage) {  // micro-batches 0 and 1 of it
    std::vector<Action>& list = schedule.actions[static_cast<std::size_t>(schedule.rank_of(stage))];
    std::iter_swap(std::find(list.begin(), list.end(), Action{kind, 0, stage}),
                   std::find(list.begin(), list.end(), Action{kind, 1, stage}));
  };
  const std::string arrives = ": what arrives then is what rank ";
  PipelineSchedule schedule = forwards_first(2, 2, 2);
  REQUIRE(refusal(schedule).empty());
  swap_stage(schedule, F, 0);
  CHECK(refusal(schedule) == "rank 1, action 0, forward of micro-batch 0 in stage 1" + arrives +
                                 "0 sends in its action 0, of micro-batch 1 for stage 1");
  schedule = forwards_first(2, 2, 2);
  for (const int stage : {2, 3}) swap_stage(schedule, F, stage);
  CHECK(refusal(schedule) == "rank 0, action 2, forward of micro-batch 1 in stage 2" + arrives +
                                 "1 sends in its action 0, of micro-batch 0 for stage 2");
  schedule = forwards_first(2, 2, 2);
  swap_stage(schedule, BW, 3);
  CHECK(refusal(schedule) == "rank 0, action 4, backward of micro-batch 0 in stage 2" + arrives +
                                 "1 sends in its action 4, of micro-batch 1 for stage 2");
  schedule = forwards_first(2, 2, 2);
  for (const int stage : {2, 3}) swap_stage(schedule, BW, stage);
  CHECK(refusal(schedule) == "rank 1, action 6, backward of micro-batch 0 in stage 1" + arrives +
                                 "0 sends in its action 4, of micro-batch 1 for stage 1");
  schedule = forwards_first(2, 2, 2);
  for (const int stage : {0, 1, 2, 3}) swap_stage(schedule, BW, stage);
  CHECK(refusal(schedule).empty());  // all alike
}

TEST_CASE("check_schedule: names the ranks that wait for each other, and for what")
{
  PipelineSchedule schedule = one_forward_one_backward(2, 2);
  schedule.actions = {with_warm_up(0, 0, 2), with_warm_up(1, 1, 2)};
  schedule.max_in_flight = {1, 2};
  CHECK(
      refusal(schedule) ==
      "deadlock, ranks wait for each other: rank 0, action 1, backward of micro-batch 0 in stage 0, waits for a "
      "gradient from stage 1 of rank 1; rank 1, action 1, forward of micro-batch 1 in stage 1, waits for rows from "
      "stage 0 of rank 0");
}

TEST_CASE("check_schedule: refuses a warm-up that is longer or shorter than max_in_flight allows")
{
  constexpr int p = 4, m = 8;
  for (int rank = 0; rank < p; ++rank) {
    INFO("rank " << rank);
    const std::string who = "rank " + std::to_string(rank) + ", action ",
                      stage = " in stage " + std::to_string(rank);
    const int warm_up = p - 1 - rank;
    PipelineSchedule schedule = one_forward_one_backward(p, m);
    schedule.actions[static_cast<std::size_t>(rank)] = with_warm_up(warm_up + 1, rank, m);
    CHECK(refusal(schedule) ==
          who + std::to_string(warm_up + 1) + ", forward of micro-batch " + std::to_string(warm_up + 1) + stage +
              ": it is one too many: the rank holds the activations of at most " + std::to_string(warm_up + 1));
    if (warm_up == 0) continue;
    schedule.actions[static_cast<std::size_t>(rank)] = with_warm_up(warm_up - 1, rank, m);
    CHECK(refusal(schedule) == who + std::to_string(warm_up) + ", backward of micro-batch 0" + stage +
                                   ": its warm-up is short: the rank holds the activations of " +
                                   std::to_string(warm_up) + " at most, and could hold " +
                                   std::to_string(warm_up + 1));
  }
}

TEST_CASE("check_schedule: activations are kept until W")
{
  PipelineSchedule schedule = in_halves(one_forward_one_backward(2, 3));  // rank 0: F0 F1 B0 W0 F2 B1 W1 B2 W2
  std::vector<Action>& list = schedule.actions[0];
  const auto third = std::find(list.begin(), list.end(), Action{F, 2, 0});
  REQUIRE(*(third - 1) == Action{W, 0, 0});
  std::iter_swap(third - 1, third);
  CHECK_THAT(refusal(schedule), Contains("rank 0, action 3, forward of micro-batch 2") && Contains("one too many"));
}

TEST_CASE("check_schedule: a schedule with max_in_flight 0 has no backward passes")
{
  PipelineSchedule schedule = gpipe(2, 2);
  schedule.max_in_flight = {0, 0};
  CHECK(refusal(schedule) ==
        "rank 0, action 2, backward of micro-batch 0 in stage 0: a schedule with no micro-batch in flight keeps "
        "no activations for a backward pass");
}
