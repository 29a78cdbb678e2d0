#pragma once

#include <map>
#include <vector>

#include "common/messages/layers/virtual_clock.hpp"
#include "common/messages/transport.hpp"

/// @file
/// Communication that take virtual time.

namespace rankwise {

/// The layer under which each message takes the time of the link between its two ranks. Before each message goes
/// another one of 8 bytes, with the moment at which it leaves; it costs nothing.
///
/// Transfers that are started at time t: what is sent leaves one after the other as soon as the link is free, the
/// first not before t; a message of b bytes occupies the link for b / bandwidth. One that leaves at s has arrived
/// at s + latency + b / bandwidth; a link takes in any number at once. Transfers are finished when the last of
/// them has arrived or left the link.
class LinkTransport final : public TransportLayer {
 public:
  /// @param inner         where messages go on to; in the host's memory.
  /// @param clock         of this rank; outlives the layer.
  /// @param ranks_in_job  the number in the job of each rank of the group.
  LinkTransport(Transport& inner, VirtualClock& clock, std::vector<int> ranks_in_job);

  Ticket start(std::span<const Transfer> transfers) override;
  void finish(Ticket ticket) override;
  void enter(const Collective& collective) override;
  void leave() override;

 private:
  /// Transfers that were started together.
  struct Batch {
    std::vector<std::int64_t> stamps;  // when each message leaves, in the order of the transfers
    std::vector<Picoseconds> takes;    // how long each is on its way; 0 for what is sent
    Moment last_departure;             // when the link is free of what is sent
  };

  VirtualClock& clock_;
  std::vector<int> ranks_in_job_;
  std::map<Ticket, Batch> batches_;  // under way
};

}  // namespace rankwise
