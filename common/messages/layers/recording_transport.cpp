#include "common/messages/layers/recording_transport.hpp"

#include <utility>

namespace rankwise {

RecordingTransport::RecordingTransport(Transport& inner, MessageLog& log, const Communicator& communicator,
                                       std::string group)
    : TransportLayer(inner), log_(log), group_(std::move(group)), in_job_(communicator.ranks_in_job())
{
}

Ticket RecordingTransport::start(std::span<const Transfer> transfers)
{
  if (!log_.recording) return TransportLayer::start(transfers);
  MessageLog::Event event{group_, 0, true, {}};
  for (const Transfer& transfer : transfers) {
    if (transfer.data.bytes() == 0) continue;
    const bool sends = transfer.direction == Transfer::Direction::send;
    event.messages.push_back({sends, in_job_.at(static_cast<std::size_t>(transfer.peer)), transfer.data.bytes(),
                              sends && log_.describe ? log_.describe(transfer.data) : ""});
  }
  event.ticket = TransportLayer::start(transfers);
  log_.events.push_back(event);
  return event.ticket;
}

void RecordingTransport::finish(Ticket ticket)
{
  TransportLayer::finish(ticket);
  if (log_.recording) log_.events.push_back({group_, ticket, false, {}});
}

}  // namespace rankwise
