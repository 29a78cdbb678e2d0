#include "lessons/parallel/pipeline/row_channel.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include <fmt/format.h>

namespace rankwise {

// ---- Progress -------------------------------------------------------------------------------------------------------

namespace {

constexpr std::chrono::microseconds shortest_pause{100}, longest_pause{2000};

}  // namespace

MessageProgress::MessageProgress()
    : thread_([this](const std::stop_token& end) {
        try {
          run(end);
        } catch (...) {
          abort_job();
        }
      })
{
}

void MessageProgress::change(int messages, bool rests)
{
  {
    const std::lock_guard lock(mutex_);
    under_way_ += messages;
    resting_ = rests;
    pause_ = shortest_pause;
  }
  changed_.notify_one();
}

void MessageProgress::run(const std::stop_token& end)
{
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, end, [&] { return under_way_ > 0 && !resting_; }) && !end.stop_requested()) {
    const std::chrono::microseconds pause = pause_;
    pause_ = std::min(2 * pause_, longest_pause);
    lock.unlock();
    int found = 0;
    check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE),
              "probing for messages");
    std::this_thread::sleep_for(pause);
    lock.lock();
  }
}

// ---- Channel --------------------------------------------------------------------------------------------------------

namespace {

/// The setup of a group that sends rows on its own stream and makes no collectives.
GroupSetup on_stream(GroupSetup setup, Stream& stream)
{
  setup.stream = &stream;
  setup.algorithm = Algorithm::ring;
  setup.check_messages = false;
  return setup;
}

}  // namespace

ChannelEnd::ChannelEnd(const std::string& name, Communicator ranks, const ChannelSetup& setup)
    : stream_(setup.messages.memory.device->make_stream()),
      group_(name, std::move(ranks), on_stream(setup.messages, *stream_)),
      progress_(setup.progress),
      time_(*setup.time)
{
  check(group_.ranks() == 2, "a channel joins two ranks");
  for (ChannelBuffer& buffer : buffers_)
    buffer.rows =
        Buffer(setup.messages.memory, Category::communication, setup.type, setup.rows, "rows on their way");
}

void ChannelEnd::start(ChannelBuffer& buffer, Transfer::Direction direction)
{
  group_.stream().wait(group_.compute().record());  // until rows to send exist, or old rows are used
  const Transfer transfer{direction, buffer.rows.tensor(), 1 - group_.rank()};
  buffer.ticket = group_.transport().start(std::span(&transfer, 1));
  if (progress_ != nullptr) progress_->change(1, false);
}

void ChannelEnd::wait_for(ChannelBuffer& buffer, const std::string& name)
{
  if (!buffer.ticket) return;
  const auto span = time_.span(Work::waiting, name);
  const CollectiveLabel label(name);
  if (progress_ != nullptr) progress_->change(0, true);
  group_.transport().finish(*buffer.ticket);
  buffer.ticket.reset();
  if (progress_ == nullptr) return;  // over NCCL the message is there; the stream's other work is not waited for
  group_.compute().wait(group_.stream().record());  // over MPI a copy to the device may still run
  progress_->change(-1, false);
}

Tensor RowSender::buffer(const std::string& what)
{
  ChannelBuffer& buffer = buffer_of(sent_);
  wait_for(buffer, what);
  return buffer.rows.tensor();
}

void RowSender::finish()
{
  for (std::size_t i = 0; i < buffers_of_a_channel; ++i)
    wait_for(buffer_of(sent_ + static_cast<std::int64_t>(i)), "rows being sent");
}

void RowReceiver::begin(std::int64_t messages)
{
  check(used_ == wanted_, "a channel has messages that were not used");
  wanted_ += messages;
  for (std::size_t i = 0; i < buffers_of_a_channel; ++i) expect();
}

void RowReceiver::expect()
{
  if (expected_ < wanted_) start(buffer_of(expected_++), Transfer::Direction::receive);
}

Tensor RowReceiver::next(const std::string& what)
{
  check(used_ < wanted_, "a channel was asked for more messages than were announced");
  ChannelBuffer& buffer = buffer_of(used_);
  wait_for(buffer, what);
  return buffer.rows.tensor();
}

}  // namespace rankwise
