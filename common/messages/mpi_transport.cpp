#include "common/messages/mpi_transport.hpp"

#include <algorithm>
#include <exception>

#include <fmt/format.h>

#include "common/messages/watchdog/mpi_calls.hpp"
#include "common/program/rank_failure.hpp"

namespace rankwise {

namespace {

constexpr std::int64_t largest_message = 1 << 30;  // bytes; MPI counts in int
constexpr int tag_outside = 0;                     // tag of messages outside collectives

}  // namespace

int message_tag(const Collective& collective, std::int64_t number, int largest)
{
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  const auto add = [&hash](const void* data, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i)
      hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3;
  };
  for (const std::string_view text : {collective.name, collective.algorithm, collective.label}) {
    add(text.data(), text.size());
    add("", 1);  // end of the string
  }
  add(&collective.type, sizeof collective.type);
  add(&collective.count, sizeof collective.count);
  add(&collective.root, sizeof collective.root);
  add(&number, sizeof number);
  return 1 + static_cast<int>((hash ^ hash >> 32) % static_cast<std::uint64_t>(largest));
}

MpiTransport::MpiTransport(const Communicator& communicator, Stream& stream, Sends sends)
    : communicator_(communicator), stream_(stream), sends_(sends)
{
  int* largest = nullptr;
  int found = 0;
  check_mpi(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&largest), &found),
            "asking for the largest tag");
  check(found != 0, "MPI does not report its largest message tag");
  largest_tag_ = *largest;
}

MpiTransport::~MpiTransport()
{
  const bool all_finished = std::none_of(batches_.begin(), batches_.end(), [](const Batch& b) { return b.open; });
  if (all_finished) return;
  if (can_survive()) give_up();
  if (std::uncaught_exceptions() > 0) return;
  abort_job({"a group was destroyed while one of its messages was in flight", exit_failure});
}

Ticket MpiTransport::start(std::span<const Transfer> transfers)
{
  for (const Transfer& transfer : transfers)
    check(0 <= transfer.peer && transfer.peer < ranks(),
          fmt::format("a message between rank {} and rank {} of {}", rank(), transfer.peer, ranks()));
  auto free = std::find_if(batches_.begin(), batches_.end(), [](const Batch& b) { return !b.open; });
  if (free == batches_.end()) free = batches_.emplace(batches_.end());
  free->open = true;
  free->requests.clear();
  free->expected.clear();
  try {
    for (const Transfer& transfer : transfers) start_transfer(transfer, *free);
  } catch (const RankFailure&) {
    give_up();
    throw;
  }
  return free - batches_.begin();
}

/// Waits for all messages in flight, which fail, because a rank has died: what holds their data is destroyed next.
void MpiTransport::give_up()
{
  for (Batch& batch : batches_) wait_for_failure(batch.requests);
}

void MpiTransport::start_transfer(const Transfer& transfer, Batch& batch)
{
  const bool sends = transfer.direction == Transfer::Direction::send;
  const OwnMpiCalls own;
  const auto send = sends_ == Sends::synchronous ? MPI_Issend : MPI_Isend;
  const std::int64_t bytes = transfer.data.bytes();
  for (std::int64_t first = 0; first < bytes; first += largest_message) {
    std::byte* data = transfer.data.raw() + first;
    const int count = static_cast<int>(std::min(largest_message, bytes - first));
    MPI_Request& request = batch.requests.emplace_back(MPI_REQUEST_NULL);
    batch.expected.push_back(sends ? -1 : count);
    check_mpi(sends ? send(data, count, MPI_BYTE, transfer.peer, tag_, communicator_.handle(), &request)
                    : MPI_Irecv(data, count, MPI_BYTE, transfer.peer, tag_, communicator_.handle(), &request),
              sends ? "sending a message" : "receiving a message");
  }
}

void MpiTransport::finish(Ticket ticket)
{
  check(0 <= ticket && ticket < static_cast<Ticket>(batches_.size()) &&
            batches_[static_cast<std::size_t>(ticket)].open,
        "finish() was called for transfers that are not in flight");
  const OwnMpiCalls own;
  try {
    wait_for(batches_[static_cast<std::size_t>(ticket)]);
  } catch (const RankFailure&) {
    give_up();
    throw;
  }
}

void MpiTransport::wait_for(Batch& batch)
{
  if (can_survive()) wait_or_fail(batch.requests, communicator_.handle());
  statuses_.resize(batch.requests.size());
  check_mpi(MPI_Waitall(static_cast<int>(batch.requests.size()), batch.requests.data(), statuses_.data()),
            "waiting for messages");
  batch.open = false;
  for (std::size_t i = 0; i < statuses_.size(); ++i) {
    if (batch.expected[i] < 0) continue;
    int bytes = 0;
    check_mpi(MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes), "asking for the size of a message");
    check(bytes == batch.expected[i], fmt::format("rank {} sent {} bytes where {} were expected",
                                                  statuses_[i].MPI_SOURCE, bytes, batch.expected[i]));
  }
}

void MpiTransport::enter(const Collective& collective)
{
  check(tag_ == tag_outside, "a collective was called inside another one of the same group", collective.where);
  tag_ = message_tag(collective, ++collectives_, largest_tag_);
}

void MpiTransport::leave()
{
  tag_ = tag_outside;
}

}  // namespace rankwise
