#pragma once

#include <map>
#include <vector>

#include "common/memory/device.hpp"
#include "common/messages/transport.hpp"

/// @file
/// Messages between GPU memories through host memory, so that MPI need not support GPUs and ranks can share one.

namespace rankwise {

/// A layer that stages messages: data to send is copied from the device to pinned host memory, received data from
/// there to the device.
///
///     rank 0   device  --copy-->  host  --message-->  host  --copy-->  device   rank 1
///
/// @cost  each byte crosses the link between device and host once on each side. The staging buffers grow to the
///        bytes in flight at once; they are counted as communication.
class StagingTransport final : public TransportLayer {
 public:
  /// @param inner   transport between host memories; outlives the layer.
  /// @param memory  memory of the device on which tensors are; its ledger counts the staging buffers too.
  StagingTransport(Transport& inner, const DeviceMemory& memory);

  Ticket start(std::span<const Transfer> transfers) override;
  /// Returns when the received data is on the device.
  void finish(Ticket ticket) override;

 private:
  /// A transfer in flight, and its staging buffer.
  struct Carried {
    Transfer transfer;
    Buffer host;
  };

  Buffer take(std::int64_t bytes);

  DeviceMemory memory_;  // memory of the staging buffers
  std::vector<Buffer> free_;
  std::map<Ticket, std::vector<Carried>> carried_;
};

}  // namespace rankwise
