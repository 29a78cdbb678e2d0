#include "lessons/11_zero_bubble/zero_bubble_schedule.hpp"

#include <fmt/format.h>

#include "common/base/error.hpp"

namespace rankwise {

PipelineSchedule zero_bubble(int ranks, int micro_batches)
{
  check(ranks >= 1 && micro_batches >= ranks,
        fmt::format("{} micro-batches are too few to fill {} ranks", micro_batches, ranks));
  const double idle_formula = static_cast<double>(ranks - 1) / (3 * micro_batches + ranks - 1);
  PipelineSchedule schedule{"zero-bubble", ranks, 1, micro_batches, {}, {}, idle_formula};
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Action>& actions = schedule.actions.emplace_back();
    // BEGIN EXERCISE 11.1
    // Warm-up: the forward passes that fill the stages after this one.
    const int warm_up = ranks - 1 - rank;
    for (int i = 0; i < warm_up; ++i) actions.push_back({ActionKind::forward, i, rank});
    // Steady state: one forward, one B, and the W of r micro-batches before.
    for (int i = 0; i < micro_batches; ++i) {
      if (warm_up + i < micro_batches) actions.push_back({ActionKind::forward, warm_up + i, rank});
      actions.push_back({ActionKind::backward_input, i, rank});
      if (i >= rank) actions.push_back({ActionKind::backward_weights, i - rank, rank});
    }
    // Cool-down: the r deferred W fill the time in which 1F1B is idle.
    for (int i = micro_batches - rank; i < micro_batches; ++i)
      actions.push_back({ActionKind::backward_weights, i, rank});
    // END EXERCISE
    schedule.max_in_flight.push_back(ranks);
  }
  return schedule;
}

}  // namespace rankwise
