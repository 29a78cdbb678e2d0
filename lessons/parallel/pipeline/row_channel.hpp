#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "common/memory/device.hpp"
#include "common/messages/communicator.hpp"
#include "common/messages/group.hpp"
#include "common/program/time_ledger.hpp"

/// @file
/// Messages of rows between two ranks, while both compute.

namespace rankwise {

/// A progress thread: MPI moves messages only while it is called. The thread calls MPI_Iprobe while messages are under
/// way, first after 100 us, then after pauses that double up to 2 ms: each call interrupts the computation of this core,
/// and a message that has been under way for long can wait as long again. It probes MPI_COMM_WORLD, on which no messages are sent, since groups have
/// communicators of their own: a probe that finds a message returns at once, without moving any other.
class MessageProgress {
 public:
  /// Starts the thread; the destructor ends it.
  MessageProgress();

  /// Adds to the number of messages under way, and suspends or resumes the thread.
  /// @param messages  may be negative.
  /// @param rests     true while the rank itself waits for a message: that wait moves all messages, and two threads
  ///                  in MPI would contend for its lock.
  void change(int messages, bool rests);

 private:
  void run(const std::stop_token& end);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  int under_way_ = 0;
  bool resting_ = false;
  std::chrono::microseconds pause_{0};  // before the next call
  std::jthread thread_;                 // last: it uses all of the above
};

/// Buffers of a channel: one message is computed with while another is on its way.
inline constexpr std::size_t buffers_of_a_channel = 2;

/// Setup that both ends of a channel have in common.
struct ChannelSetup {
  GroupSetup messages;        ///< its group's setup; the objects it refers to outlive the channel
  DType type = DType::f32;    ///< type of the rows
  Shape rows;                 ///< (R, C) of each message
  MessageProgress* progress;  ///< progress thread, null if not needed; outlives the channel
  TimeLedger* time;           ///< where waiting is counted; outlives the channel
};

/// One end of a one-way channel between two ranks: messages of the same size, in the order in which they are sent.
///
/// Each channel has its own group and stream, so that no message waits for a message of another channel.
class ChannelEnd {
 public:
  /// @param name   of the group; the traffic is counted under it.
  /// @param ranks  two: rank 0 sends, rank 1 receives. Both make and destroy their ends together.
  ChannelEnd(const std::string& name, Communicator ranks, const ChannelSetup& setup);

 protected:
  /// Buffer of one message.
  struct ChannelBuffer {
    Buffer rows;                   ///< (R, C)
    std::optional<Ticket> ticket;  ///< while it is on its way
  };

  /// Starts to send or to receive the message of a buffer.
  void start(ChannelBuffer& buffer, Transfer::Direction direction);
  /// Waits until the message has been sent or received, if it is on its way. @param name  of the message, for the
  /// watchdog.
  void wait_for(ChannelBuffer& buffer, const std::string& name);
  /// The buffer of message @p number.
  ChannelBuffer& buffer_of(std::int64_t number)
  {
    return buffers_[static_cast<std::size_t>(number) % buffers_of_a_channel];
  }

 private:
  std::unique_ptr<Stream> stream_;
  Group group_;
  MessageProgress* progress_;
  TimeLedger& time_;
  std::array<ChannelBuffer, buffers_of_a_channel> buffers_;
};

/// Sends rows: `compute into buffer(); send();`
class RowSender : ChannelEnd {
 public:
  using ChannelEnd::ChannelEnd;

  /// Buffer for the next message, (R, C); waits until the message that it held before has been sent.
  /// @param what  name of the message, as "forward of micro-batch 3 in stage 1".
  Tensor buffer(const std::string& what);
  /// Starts to send that buffer, and returns at once.
  void send() { start(buffer_of(sent_++), Transfer::Direction::send); }
  /// Waits until all messages have been sent.
  void finish();

 private:
  std::int64_t sent_ = 0;
};

/// Receives rows: `begin(n); n times: compute with next(); done();`
class RowReceiver : ChannelEnd {
 public:
  using ChannelEnd::ChannelEnd;

  /// Announces the number of messages that will arrive, and starts to receive the first ones.
  void begin(std::int64_t messages);
  /// The next message, (R, C), valid until done(); waits until it has arrived.
  /// @param what  the action that needs it, as "forward of micro-batch 3 in stage 1".
  Tensor next(const std::string& what);
  /// Releases the message's buffer, into which another message is received.
  void done()
  {
    ++used_;
    expect();
  }

 private:
  void expect();

  std::int64_t wanted_ = 0;    // messages announced so far
  std::int64_t expected_ = 0;  // receives started so far
  std::int64_t used_ = 0;      // messages released so far
};

/// Bytes of the buffers of one end.
inline std::int64_t channel_bytes(DType type, const Shape& rows)
{
  return static_cast<std::int64_t>(buffers_of_a_channel) * bytes_of(type) * rows.elements();
}

}  // namespace rankwise
