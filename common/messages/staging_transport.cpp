#include "common/messages/staging_transport.hpp"

#include <algorithm>
#include <utility>

namespace rankwise {

namespace {

/// A tensor on the host with the type and number of elements of @p data.
Tensor staged(const Buffer& host, const Tensor& data)
{
  return Tensor(host.tensor().raw(), data.type(), {data.elements()});
}

}  // namespace

StagingTransport::StagingTransport(Transport& inner, const DeviceMemory& memory)
    : TransportLayer(inner), memory_{&memory.device->host_memory(), memory.ledger, Tier::host}
{
}

Ticket StagingTransport::start(std::span<const Transfer> transfers)
{
  std::vector<Carried> carried;
  std::vector<Transfer> passed_on;
  bool sends = false;
  for (const Transfer& transfer : transfers) {
    if (transfer.data.bytes() == 0) continue;
    carried.push_back({transfer, take(transfer.data.bytes())});
    passed_on.push_back(
        {transfer.direction, staged(carried.back().host, transfer.data), transfer.peer, transfer.where});
    if (transfer.direction == Transfer::Direction::receive) continue;
    sends = true;
    stream().copy(passed_on.back().data, transfer.data);
  }
  if (sends) stream().synchronise();
  const Ticket ticket = TransportLayer::start(passed_on);
  carried_.emplace(ticket, std::move(carried));
  return ticket;
}

void StagingTransport::finish(Ticket ticket)
{
  TransportLayer::finish(ticket);
  std::vector<Carried> carried = std::move(carried_.extract(ticket).mapped());
  for (const Carried& c : carried)
    if (c.transfer.direction == Transfer::Direction::receive)
      stream().copy(c.transfer.data, staged(c.host, c.transfer.data));
  stream().synchronise();  // from here on the staging buffer may be reused
  for (Carried& c : carried) free_.push_back(std::move(c.host));
}

Buffer StagingTransport::take(std::int64_t bytes)
{
  const auto fits = std::find_if(free_.begin(), free_.end(),
                                 [=](const Buffer& buffer) { return buffer.tensor().bytes() >= bytes; });
  if (fits == free_.end()) {
    if (!free_.empty()) free_.pop_back();  // too small; replaced by a larger one
    return Buffer(memory_, Category::communication, DType::u8, {bytes}, "message on the host");
  }
  Buffer taken = std::move(*fits);
  free_.erase(fits);
  return taken;
}

}  // namespace rankwise
