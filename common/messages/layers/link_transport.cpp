#include "common/messages/layers/link_transport.hpp"

#include <algorithm>
#include <utility>

namespace rankwise {

LinkTransport::LinkTransport(Transport& inner, VirtualClock& clock, std::vector<int> ranks_in_job)
    : TransportLayer(inner), clock_(clock), ranks_in_job_(std::move(ranks_in_job))
{
}

Ticket LinkTransport::start(std::span<const Transfer> transfers)
{
  const int own = ranks_in_job_[static_cast<std::size_t>(rank())];
  Batch batch;
  batch.stamps.resize(transfers.size());
  batch.takes.resize(transfers.size());
  std::vector<Transfer> with_stamps;
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    const Transfer& transfer = transfers[i];
    const std::int64_t bytes = transfer.data.bytes();
    if (bytes == 0) continue;
    const Link& link = clock_.link().of(own, ranks_in_job_.at(static_cast<std::size_t>(transfer.peer)));
    const Picoseconds occupied = link.occupied(bytes);
    if (transfer.direction == Transfer::Direction::send) {
      const Moment departure = clock_.depart(occupied);
      batch.stamps[i] = departure.since_start;
      batch.last_departure = {departure.since_start + occupied};
    } else {
      batch.takes[i] = link.latency + occupied;
    }
    with_stamps.push_back({transfer.direction, Tensor(&batch.stamps[i], DType::i64, {1}), transfer.peer});
    with_stamps.push_back(transfer);
  }
  const Ticket ticket = TransportLayer::start(with_stamps);
  batches_.emplace(ticket, std::move(batch));  // moving keeps the stamps' addresses
  return ticket;
}

void LinkTransport::finish(Ticket ticket)
{
  TransportLayer::finish(ticket);
  const Batch batch = std::move(batches_.extract(ticket).mapped());
  Moment done = batch.last_departure;
  for (std::size_t i = 0; i < batch.stamps.size(); ++i)
    if (batch.takes[i] > 0) done = std::max(done, Moment{later(batch.stamps[i], batch.takes[i])});
  clock_.arrive(done);
}

void LinkTransport::enter(const Collective& collective)
{
  TransportLayer::enter(collective);
  clock_.enter(collective.name);
}

void LinkTransport::leave()
{
  clock_.leave();
  TransportLayer::leave();
}

}  // namespace rankwise
