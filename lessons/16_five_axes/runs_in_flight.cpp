#include "lessons/16_five_axes/runs_in_flight.hpp"

namespace rankwise {

RunsInFlight::RunsInFlight(Run& run, const FiveAxesPlan& plan, const std::vector<LocalStage>& stages,
                           const RunWorkspaces& work)
    : run_(run), plan_(plan.mesh.pipeline), work_(work)
{
  // A rank along cp has the same two runs of every sequence.
  for (const std::int64_t number : plan.ring.runs.of(plan.context_rank()))
    tokens_.push_back(plan.ring.runs.tokens(number));
  // The later run of a micro-batch needs as many slots as the earlier one, which has those of lesson 10.
  for (const LocalStage& own : stages)
    later_.emplace_back(run.memory, run.config, plan_.shape_of(own.stage), work.back(), plan_.in_flight(own.stage));
}

std::int64_t RunsInFlight::now() const
{
  const VirtualClock* const clock = run_.messages.clock();
  return clock != nullptr ? clock->now().since_start : 0;
}

std::vector<TokenRun> RunsInFlight::before(LocalStage& own, std::size_t place, const Action& action,
                                           const Load& load)
{
  times_.push_back({action, now(), 0});
  std::vector<TokenRun> both;
  const std::array<InFlight*, TokenRuns::of_a_rank> slots{&own.stash.before(action), &later_[place].before(action)};
  for (std::size_t k = 0; k < slots.size(); ++k) {
    TokenRun& mine = both.emplace_back(TokenRun{tokens_[k], work_[k], slots[k]->kept});
    // The forward pass loads the run's tokens; the slot keeps them for the backward pass.
    if (action.kind == ActionKind::forward) slots[k]->batch = load(mine);
    mine.batch = slots[k]->batch;
  }
  return both;
}

void RunsInFlight::after(LocalStage& own, std::size_t place, const Action& action, bool training)
{
  own.stash.after(action, training);
  later_[place].after(action, training);
  times_.back().end = now();
}

LossSum RunsInFlight::forward_only(
    Pipeline& pipeline, std::vector<LocalStage>& stages, std::int64_t passes,
    const std::function<MicroBatch(const TokenRun& mine, std::int64_t number)>& load,
    const std::function<LossSum(const LocalStage&, std::vector<TokenRun>&, const Tensor& received,
                                const Tensor& send_buffer)>& forward)
{
  const PipelineSchedule forwards =
      rankwise::forward_only(plan_.schedule.ranks, plan_.schedule.virtual_stages, static_cast<int>(passes));
  LossSum loss;
  pipeline.run(forwards, [&](const Action& action, const Tensor& received, const Tensor& send_buffer) {
    const std::size_t place = plan_.place_of(action);
    LocalStage& own = stages[place];
    std::vector<TokenRun> both =
        before(own, place, action, [&](const TokenRun& mine) { return load(mine, action.micro_batch); });
    loss += forward(own, both, received, send_buffer);
    after(own, place, action, false);
  });
  return loss;
}

}  // namespace rankwise
