// The stash of lesson 09: the activations of micro-batches in flight, and their lifetime.

#include <map>
#include <string>
#include <vector>

#include "common/base/error.hpp"
#include "lessons/parallel/pipeline/stash.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/tiny_model.hpp"
#include "tests/lessons/09/in_halves.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

constexpr ActionKind F = ActionKind::forward, BW = ActionKind::backward, B = ActionKind::backward_input,
                     W = ActionKind::backward_weights;
constexpr std::int64_t T = 8;
const ModelConfig config = tiny_config(2, 2, 16, T);

/// Memory of the last of two stages for a micro-batch whose backward pass has two halves.
const ActivationShape shape{
    .type = DType::f32, .B = 2, .T = T, .units = {3, 3}, .defers_weights = true, .gradients = DType::f32};

/// A stash of that stage.
struct StashForTest {
  explicit StashForTest(int places) : stash(lab.memory(), config, shape, work, places) {}

  std::int64_t kept() { return lab.ledger().current(Tier::device)[Category::activations]; }

  Laboratory lab;
  Workspace work{lab.memory(), config, shape};
  Stash stash;
};

/// Runs a list of actions with a stash as a program does: each action finds its micro-batch's activations there.
void check_walk(const std::vector<Action>& actions, int stage, Stash& stash)
{
  std::map<int, const InFlight*> places;
  for (const Action& action : actions) {
    if (action.stage != stage) continue;
    INFO(describe(action));
    InFlight& m = stash.before(action);
    if (action.kind == F) {
      for (const auto& [other, place] : places) CHECK(place != &m);
      places[action.micro_batch] = &m;
      m.batch.step = action.micro_batch;
    }
    CHECK(places.at(action.micro_batch) == &m);
    CHECK(m.batch.step == action.micro_batch);
    stash.after(action, true);
    if (action.kind == BW || action.kind == W) places.erase(action.micro_batch);
  }
  CHECK(places.empty());
}

}  // namespace

TEST_CASE("most_in_flight: with one stage on a rank it is max_in_flight of the schedule")
{
  for (int p = 1; p <= 6; ++p)
    for (int m = p; m <= 3 * p; m += p)
      for (const PipelineSchedule& schedule :
           {gpipe(p, m), interleaved(p, 1, m), in_halves(one_forward_one_backward(p, m))})
        for (int rank = 0; rank < p; ++rank) {
          INFO(schedule.name << ", p = " << p << ", m = " << m << ", rank " << rank);
          const auto r = static_cast<std::size_t>(rank);
          CHECK(most_in_flight(schedule.actions[r], rank) == schedule.max_in_flight[r]);
        }
}

TEST_CASE("most_in_flight: of each of a rank's stages alone, by hand")
{
  const PipelineSchedule schedule = interleaved(2, 2, 4);
  CHECK(most_in_flight(schedule.actions[0], 0) == 4);
  CHECK(most_in_flight(schedule.actions[0], 2) == 2);
  CHECK(most_in_flight(schedule.actions[1], 1) == 3);
  CHECK(most_in_flight(schedule.actions[1], 3) == 1);
  CHECK(most_in_flight(schedule.actions[1], 0) == 0);
}

TEST_CASE("most_in_flight: the second half of a backward pass keeps the activations, however late it is")
{
  const std::vector<Action> late{{F, 0, 0}, {B, 0, 0}, {F, 1, 0}, {B, 1, 0}, {F, 2, 0},
                                 {B, 2, 0}, {W, 0, 0}, {W, 1, 0}, {W, 2, 0}};
  CHECK(most_in_flight(late, 0) == 3);
  const std::vector<Action> at_once{{F, 0, 0}, {B, 0, 0}, {W, 0, 0}, {F, 1, 0}, {B, 1, 0}, {W, 1, 0}};
  CHECK(most_in_flight(at_once, 0) == 1);
}

TEST_CASE("most_in_flight: without backward passes one micro-batch at a time")
{
  CHECK(most_in_flight({{F, 0, 2}, {F, 1, 2}, {F, 2, 2}}, 2) == 1);
  CHECK(most_in_flight({{F, 0, 2}, {F, 1, 2}, {F, 2, 2}}, 0) == 0);
  CHECK(most_in_flight({}, 0) == 0);
}

TEST_CASE(
    "Stash: a micro-batch finds its place again until its backward pass is over, and no other has it meanwhile")
{
  for (const PipelineSchedule& schedule :
       {gpipe(3, 5), interleaved(3, 1, 6), in_halves(one_forward_one_backward(3, 5))})
    for (int rank = 0; rank < 3; ++rank) {
      INFO(schedule.name << ", rank " << rank);
      const std::vector<Action>& actions = schedule.actions[static_cast<std::size_t>(rank)];
      const int places = most_in_flight(actions, rank);
      StashForTest test(places);
      for (int step = 0; step < 2; ++step) check_walk(actions, rank, test.stash);
      CHECK(test.stash.most_taken() == places);
    }
  const PipelineSchedule schedule = interleaved(2, 3, 4);
  for (int stage = 0; stage < 6; ++stage) {
    INFO("stage " << stage);
    const std::vector<Action>& actions = schedule.actions[static_cast<std::size_t>(stage % 2)];
    StashForTest test(most_in_flight(actions, stage));
    check_walk(actions, stage, test.stash);
    CHECK(test.stash.most_taken() == most_in_flight(actions, stage));
  }
}

TEST_CASE("Stash: without backward passes one slot suffices for any number of micro-batches")
{
  StashForTest test(1);
  for (int i = 0; i < 5; ++i) {
    test.stash.before({F, i, 1});
    test.stash.after({F, i, 1}, false);
  }
  CHECK(test.stash.most_taken() == 1);
}

TEST_CASE("Stash: allocates its slots once, and their bytes do not change")
{
  for (const int places : {0, 1, 4}) {
    StashForTest test(places);
    CHECK(test.kept() == places * kept_bytes(config, shape));
    for (int i = 0; i < places; ++i) test.stash.before({F, i, 1});
    CHECK(test.kept() == places * kept_bytes(config, shape));
  }
}

TEST_CASE("Stash: a forward pass without a free slot and a backward pass without a forward pass are errors")
{
  StashForTest test(2);
  const auto message = [&](const Action& action) -> std::string {
    try {
      test.stash.before(action);
    } catch (const NotImplemented&) {
      throw;
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  for (const int i : {0, 1}) {
    test.stash.before({F, i, 1});
    test.stash.after({F, i, 1}, true);
  }
  CHECK_THAT(message({F, 2, 1}), Contains("forward of micro-batch 2 in stage 1: the stage has no free slot"));
  CHECK_THAT(message({BW, 2, 1}), Contains("backward of micro-batch 2 in stage 1: no activations are kept"));
  CHECK(message({BW, 0, 1}).empty());
  test.stash.after({BW, 0, 1}, true);
  CHECK_THAT(message({BW, 0, 1}), Contains("no activations are kept"));
  CHECK(message({F, 2, 1}).empty());
}
