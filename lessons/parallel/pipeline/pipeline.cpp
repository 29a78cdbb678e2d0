#include "lessons/parallel/pipeline/pipeline.hpp"

#include <algorithm>
#include <utility>

#include "common/messages/rehearsal/rehearsal.hpp"

namespace rankwise {

namespace {

/// Number of boundaries between ranks that rows cross: those after ranks 0 .. p - 2, and with virtual stages also the
/// one from the last rank back to rank 0.
int boundaries(int ranks, int virtual_stages)
{
  return ranks > 1 && virtual_stages > 1 ? ranks : ranks - 1;
}

/// Creates one end of a channel on each of its two ranks; all other ranks get a group that is not used.
void make_channel(const char* name, int sender, int receiver, const Group& line, const ChannelSetup& setup,
                  Channels& channels)
{
  const int own = line.rank();
  const bool sends = own == sender, receives = own == receiver;
  Communicator ranks =
      line.communicator().among(sends || receives ? std::vector{sender, receiver} : std::vector{own});
  if (sends)
    channels.out = std::make_unique<RowSender>(name, std::move(ranks), setup);
  else if (receives)
    channels.in = std::make_unique<RowReceiver>(name, std::move(ranks), setup);
}

}  // namespace

Pipeline::Pipeline(Group& line, int virtual_stages, const GroupSetup& setup, DType type, const Shape& rows,
                   TimeLedger& time)
    : line_(line), time_(time)
{
  if (line.ranks() > 1 && !setup.nccl && !Rehearsal::current()) progress_ = std::make_unique<MessageProgress>();
  const ChannelSetup channel{setup, type, rows, progress_.get(), &time};
  for (int before = 0; before < boundaries(line.ranks(), virtual_stages); ++before) {
    const int behind = (before + 1) % line.ranks();
    make_channel(rows_group, before, behind, line, channel, rows_);
    make_channel(gradients_group, behind, before, line, channel, gradients_);
  }
}

std::int64_t Pipeline::bytes(int ranks, int virtual_stages, int rank, DType type, const Shape& rows)
{
  const int all = boundaries(ranks, virtual_stages), before = (rank + ranks - 1) % ranks;
  return 2 * ((rank < all ? 1 : 0) + (before < all ? 1 : 0)) * channel_bytes(type, rows);
}

std::vector<PerformedAction> Pipeline::run(const PipelineSchedule& schedule, const Perform& perform)
{
  const std::vector<Action>& actions = schedule.actions[static_cast<std::size_t>(line_.rank())];
  // The list determines how many messages will arrive, so the first receives are posted before anything is
  // computed.
  for (const Channels* channels : {&rows_, &gradients_})
    if (channels->in)
      channels->in->begin(std::ranges::count_if(actions, [&](const Action& action) {
        return &channels_of(action) == channels && receives(schedule, action);
      }));

  std::vector<PerformedAction> performed;
  for (const Action& action : actions) {
    const Channels& channels = channels_of(action);
    RowReceiver* const source = receives(schedule, action) ? channels.in.get() : nullptr;
    RowSender* const target = sends(schedule, action) ? channels.out.get() : nullptr;
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
  for (const Channels* channels : {&rows_, &gradients_})
    if (channels->out) channels->out->finish();
  return performed;
}

}  // namespace rankwise
