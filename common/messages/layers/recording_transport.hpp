#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/messages/communicator.hpp"
#include "common/messages/transport.hpp"

/// @file
/// A record of the messages that a rank sends and receives, to be looked at afterwards.

namespace rankwise {

/// What this rank has sent and received, in order.
struct MessageLog {
  /// One transfer.
  struct Message {
    bool sends;          ///< else it receives
    int peer;            ///< the other rank, by its number in the job
    std::int64_t bytes;  ///< > 0
    std::string what;    ///< what it holds, as describe() says; of what is sent only
  };
  /// Transfers that were started together, or finished together.
  struct Event {
    std::string group;              ///< name of the group whose transport it was
    Ticket ticket;                  ///< of the transfers; its number is used again when they are finished
    bool starts;                    ///< else they are finished now
    std::vector<Message> messages;  ///< of a start
  };

  bool recording = false;                              ///< whether events are kept
  std::function<std::string(const Tensor&)> describe;  ///< called before a message is sent; may be empty
  std::vector<Event> events;                           ///< in order, of all groups
};

/// The layer that keeps a record.
class RecordingTransport final : public TransportLayer {
 public:
  /// @param inner         where messages go on to.
  /// @param log           where they are recorded; outlives the layer.
  /// @param communicator  the same ranks.
  /// @param group         the name under which.
  RecordingTransport(Transport& inner, MessageLog& log, const Communicator& communicator, std::string group);

  Ticket start(std::span<const Transfer> transfers) override;
  void finish(Ticket ticket) override;

 private:
  MessageLog& log_;
  std::string group_;
  std::vector<int> in_job_;  // the number in the job of each rank of the group
};

}  // namespace rankwise
