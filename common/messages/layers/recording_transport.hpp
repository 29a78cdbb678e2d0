#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/messages/communicator.hpp"
#include "common/messages/transport.hpp"

/// @file
/// A log of the messages that a rank sends and receives, for later inspection.

namespace rankwise {

/// Messages that this rank has sent and received, in order.
struct MessageLog {
  /// One transfer.
  struct Message {
    bool sends;          ///< true if it is sent; else received
    int peer;            ///< the other rank, as its rank in the job
    std::int64_t bytes;  ///< > 0
    std::string what;    ///< content according to describe(); sent messages only
  };
  /// Transfers that were started together, or finished together.
  struct Event {
    std::string group;              ///< name of the transport's group
    Ticket ticket;                  ///< ticket of the transfers; reused after they are finished
    bool starts;                    ///< true if they are started; else finished
    std::vector<Message> messages;  ///< the transfers, if they are started
  };

  bool recording = false;                              ///< true if events are recorded
  std::function<std::string(const Tensor&)> describe;  ///< describes a message before it is sent; may be empty
  std::vector<Event> events;                           ///< events of all groups, in order
};

/// The layer that records messages in a log.
class RecordingTransport final : public TransportLayer {
 public:
  /// @param inner         the layer below.
  /// @param log           the log; outlives the layer.
  /// @param communicator  the same ranks.
  /// @param group         name of the group in the log.
  RecordingTransport(Transport& inner, MessageLog& log, const Communicator& communicator, std::string group);

  Ticket start(std::span<const Transfer> transfers) override;
  void finish(Ticket ticket) override;

 private:
  MessageLog& log_;
  std::string group_;
  std::vector<int> in_job_;  // rank in the job of each rank of the group
};

}  // namespace rankwise
