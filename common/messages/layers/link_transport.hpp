#pragma once

#include <map>
#include <vector>

#include "common/messages/layers/virtual_clock.hpp"
#include "common/messages/transport.hpp"

/// @file
/// Messages that take virtual time.

namespace rankwise {

/// The layer in which each message takes the virtual time of the link between its two ranks. Each message is
/// preceded by one of 8 bytes with its departure time, which takes no virtual time.
///
/// Messages of transfers that are started at time t depart one after the other as soon as the link is free, the
/// first not before t; a message of b bytes occupies the link for b / bandwidth. One that departs at s arrives at
/// s + latency + b / bandwidth; a rank can receive any number of messages at once. Transfers are finished when the
/// last of them has arrived or left the link.
class LinkTransport final : public TransportLayer {
 public:
  /// @param inner         the layer below, with tensors in host memory.
  /// @param clock         this rank's clock; outlives the layer.
  /// @param ranks_in_job  rank in the job of each rank of the group.
  LinkTransport(Transport& inner, VirtualClock& clock, std::vector<int> ranks_in_job);

  Ticket start(std::span<const Transfer> transfers) override;
  void finish(Ticket ticket) override;
  void enter(const Collective& collective) override;
  void leave() override;

 private:
  /// Transfers that were started together.
  struct Batch {
    std::vector<std::int64_t> stamps;  // departure time of each message, in the order of the transfers
    std::vector<Picoseconds> takes;    // travel time of each received message; 0 for sent ones
    Moment last_departure;             // time at which the last sent message has left the link
  };

  VirtualClock& clock_;
  std::vector<int> ranks_in_job_;
  std::map<Ticket, Batch> batches_;  // in flight
};

}  // namespace rankwise
