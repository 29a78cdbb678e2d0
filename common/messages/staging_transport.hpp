#pragma once

#include <map>
#include <vector>

#include "common/memory/device.hpp"
#include "common/messages/transport.hpp"

/// @file
/// Communication between the memories of GPUs through memory of the host, so that MPI need not know of GPUs, and several ranks
/// may share one.

namespace rankwise {

/// A layer that carries what is sent from the device to memory of the host that the device copies to by itself, and what
/// is received the other way.
///
///     rank 0   device  --copy-->  host  --message-->  host  --copy-->  device   rank 1
///
/// @cost  each byte crosses the link between device and host once on each side. The host's memory grows to what is under
///        way at a time; it is counted as communication.
class StagingTransport final : public TransportLayer {
 public:
  /// @param inner   sends from memory of the host; outlives the layer.
  /// @param memory  of the device that tensors lie on; its ledger counts the host's memory too.
  StagingTransport(Transport& inner, const DeviceMemory& memory);

  Ticket start(std::span<const Transfer> transfers) override;
  /// Returns when what arrived is on the device.
  void finish(Ticket ticket) override;

 private:
  /// A transfer under way, and where it lies on the host.
  struct Carried {
    Transfer transfer;
    Buffer host;
  };

  Buffer take(std::int64_t bytes);

  DeviceMemory memory_;  // of the host
  std::vector<Buffer> free_;
  std::map<Ticket, std::vector<Carried>> carried_;
};

}  // namespace rankwise
