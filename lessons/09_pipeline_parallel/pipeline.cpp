#include "lessons/09_pipeline_parallel/pipeline.hpp"

#include <utility>

namespace rankwise {

namespace {

/// A stage boundary between two ranks: rows are sent across it, and gradients back.
struct Boundary {
  int before;  // rank
  int behind;  // rank
};

/// The boundaries before stages 1 .. p - 1; with virtual stages also that from the last rank to rank 0.
std::vector<Boundary> boundaries(int ranks, int virtual_stages)
{
  std::vector<Boundary> all;
  for (int rank = 0; rank + 1 < ranks; ++rank) all.push_back({rank, rank + 1});
  if (ranks > 1 && virtual_stages > 1) all.push_back({ranks - 1, 0});
  return all;
}

/// The two ranks of a channel, the sender first; all other ranks get a group that is not used.
Communicator two_ranks(const Group& line, int sender, int receiver)
{
  const bool inside = line.rank() == sender || line.rank() == receiver;
  return line.communicator().split(inside ? 0 : 1, line.rank() == receiver ? 1 : 0);
}

/// Creates one end of a channel on each of its two ranks.
void make_channel(const char* name, int sender, int receiver, const Group& line, const ChannelSetup& setup,
                  std::unique_ptr<RowSender>& out, std::unique_ptr<RowReceiver>& in)
{
  Communicator ranks = two_ranks(line, sender, receiver);
  if (line.rank() == sender) out = std::make_unique<RowSender>(name, std::move(ranks), setup);
  if (line.rank() == receiver) in = std::make_unique<RowReceiver>(name, std::move(ranks), setup);
}

bool goes_forwards(const Action& action)
{
  return action.kind == ActionKind::forward;
}

/// Whether an action receives rows or a gradient: forward all stages but the first, backward all but the last.
bool receives(const Action& action, const PipelineSchedule& schedule)
{
  if (action.kind == ActionKind::backward_weights) return false;
  return action.stage != (goes_forwards(action) ? 0 : schedule.stages() - 1);
}

bool sends(const Action& action, const PipelineSchedule& schedule)
{
  if (action.kind == ActionKind::backward_weights) return false;
  return action.stage != (goes_forwards(action) ? schedule.stages() - 1 : 0);
}

}  // namespace

Pipeline::Pipeline(Group& line, int virtual_stages, const GroupSetup& setup, DType type, const Shape& rows,
                   TimeLedger& time)
    : line_(line), time_(time)
{
  if (line.ranks() > 1 && !setup.nccl) progress_ = std::make_unique<MessageProgress>();
  const ChannelSetup channel{setup, type, rows, progress_.get(), &time};
  for (const auto& [before, behind] : boundaries(line.ranks(), virtual_stages)) {
    make_channel(rows_group, before, behind, line, channel, rows_out_, rows_in_);
    make_channel(gradients_group, behind, before, line, channel, gradients_out_, gradients_in_);
  }
}

std::int64_t Pipeline::bytes(int ranks, int virtual_stages, int rank, DType type, const Shape& rows)
{
  std::int64_t ends = 0;
  for (const auto& [before, behind] : boundaries(ranks, virtual_stages))
    ends += 2 * (before == rank) + 2 * (behind == rank);
  return ends * channel_bytes(type, rows);
}

RowReceiver* Pipeline::source_of(const Action& action, const PipelineSchedule& schedule) const
{
  if (!receives(action, schedule)) return nullptr;
  return goes_forwards(action) ? rows_in_.get() : gradients_in_.get();
}

RowSender* Pipeline::target_of(const Action& action, const PipelineSchedule& schedule) const
{
  if (!sends(action, schedule)) return nullptr;
  return goes_forwards(action) ? rows_out_.get() : gradients_out_.get();
}

std::vector<PerformedAction> Pipeline::run(const PipelineSchedule& schedule, const Perform& perform)
{
  const std::vector<Action>& actions = schedule.actions[static_cast<std::size_t>(line_.rank())];
  // The list determines how many messages will arrive, so the first receives are posted before anything is
  // computed.
  std::int64_t rows = 0, gradients = 0;
  for (const Action& action : actions)
    if (receives(action, schedule)) ++(goes_forwards(action) ? rows : gradients);
  if (rows_in_) rows_in_->begin(rows);
  if (gradients_in_) gradients_in_->begin(gradients);

  std::vector<PerformedAction> performed;
  for (const Action& action : actions) {
    RowReceiver* const source = source_of(action, schedule);
    RowSender* const target = target_of(action, schedule);
    // Wait for the action's input, and for a send buffer whose old message has been sent.
    const std::string what = describe(action);
    const Tensor arrived = source != nullptr ? source->next(what) : Tensor();
    const Tensor buffer = target != nullptr ? target->buffer(what) : Tensor();
    const std::int64_t begin = event_clock_ns();
    {
      const auto span = time_.span(Work::compute, what);
      perform(action, arrived, buffer);
      line_.compute().synchronise();  // so that the measured time covers the action's work, on a GPU too
    }
    performed.push_back({action, begin, event_clock_ns()});
    // The result is sent while the next action runs, and the input's buffer can receive another message.
    if (target != nullptr) target->send();
    if (source != nullptr) source->done();
  }
  if (rows_out_) rows_out_->finish();
  if (gradients_out_) gradients_out_->finish();
  return performed;
}

}  // namespace rankwise
