#pragma once

#include <array>
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
/// Rows on their way from one rank to another, while both compute.

namespace rankwise {

/// Keeps messages going while a rank computes: MPI moves them only while somebody calls it. A thread asks MPI for news, ten
/// thousand times a second, as long as there is something to wait for. It asks for messages that this rank has sent to itself,
/// of which there are none: where MPI finds a message it says so, and moves no other.
class MessageProgress {
 public:
  MessageProgress();
  ~MessageProgress();
  MessageProgress(const MessageProgress&) = delete;
  MessageProgress& operator=(const MessageProgress&) = delete;

  /// So many messages more are under way; less, if negative.
  void count(int messages);
  /// The thread rests while the rank waits for a message itself: that moves all of them, and two that ask MPI at the same time
  /// take its lock from each other.
  void rest(bool whether);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  int under_way_ = 0;
  bool resting_ = false, ending_ = false;
  std::thread thread_;  // last: it uses all of the above
};

/// How many messages a channel has room for: one that is computed with, and one on its way meanwhile.
inline constexpr std::size_t rooms_of_a_channel = 2;

/// What both ends of a channel have in common.
struct ChannelSetup {
  GroupSetup messages;        ///< of its group; what it points to outlives the channel
  DType type = DType::f32;    ///< of the rows
  Shape rows;                 ///< (R, C) of each message
  MessageProgress* progress;  ///< keeps messages going, if somebody has to; outlives the channel
  TimeLedger* time;           ///< where waiting is counted; outlives the channel
};

/// One end of a one-way channel between two ranks: messages of the same size, in the order in which they are sent.
///
/// A channel is a group of its own with a stream of its own: no message waits for one that goes another way.
class ChannelEnd {
 public:
  /// @param name   of the group; the traffic is counted under it.
  /// @param ranks  two: rank 0 sends, rank 1 receives. Both make and destroy their ends together.
  ChannelEnd(const std::string& name, Communicator ranks, const ChannelSetup& setup);

 protected:
  /// One message, and where it lies.
  struct ChannelBuffer {
    Buffer rows;                   ///< (R, C)
    std::optional<Ticket> ticket;  ///< while it is on its way
  };

  /// Starts to send or to receive what is in a room.
  void start(ChannelBuffer& buffer, Transfer::Direction direction);
  /// Waits until it is done, if it is on its way. @param name of what is waited for.
  void wait_for(ChannelBuffer& buffer, const std::string& name);
  /// The room of message @p number.
  ChannelBuffer& buffer_of(std::int64_t number)
  {
    return buffers_[static_cast<std::size_t>(number) % rooms_of_a_channel];
  }

 private:
  std::unique_ptr<Stream> stream_;
  Group group_;
  MessageProgress* progress_;
  TimeLedger& time_;
  std::array<ChannelBuffer, rooms_of_a_channel> buffers_;
};

/// Sends rows: `compute into room(); send();`
class RowSender : ChannelEnd {
 public:
  using ChannelEnd::ChannelEnd;

  /// Where the next message is put together, (R, C); waits until what was there before has left.
  /// @param what  it is going to be, as "forward of micro-batch 3 in stage 1".
  Tensor buffer(const std::string& what);
  /// Sends what was put there; goes on at once.
  void send();
  /// Waits until everything has left.
  void finish();

 private:
  std::int64_t sent_ = 0;
};

/// Receives rows: `begin(n); n times: compute with next(); done();`
class RowReceiver : ChannelEnd {
 public:
  using ChannelEnd::ChannelEnd;

  /// So many messages will come; the first ones are received from now on.
  void begin(std::int64_t messages);
  /// The next message, (R, C), until done(); waits until it is there.
  /// @param what  it is for, as "forward of micro-batch 3 in stage 1".
  Tensor next(const std::string& what);
  /// The message is not needed any more; another one is received in its place.
  void done();

 private:
  void expect();

  std::int64_t wanted_ = 0;    // of all that come, the number of the last
  std::int64_t expected_ = 0;  // started so far
  std::int64_t used_ = 0;      // done() so far
};

/// Bytes of one end.
std::int64_t channel_bytes(DType type, const Shape& rows);

}  // namespace rankwise
