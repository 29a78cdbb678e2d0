#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "common/memory/device.hpp"
#include "common/messages/transport.hpp"

/// @file
/// `--chaos`: a transport that does everything that the message semantics allow, so that a program which relies on
/// more fails at once.

namespace rankwise {

/// Random delay of a rank: zero most of the time, else up to two milliseconds.
/// @param seed   the same seed gives the same delays.
/// @param rank   its rank in the job.
/// @param count  number of delays that it has drawn before.
std::chrono::nanoseconds chaos_delay(std::uint32_t seed, int rank, std::uint32_t count);

/// The layer of chaos testing. A correct program computes the same results under it; an incorrect one that mostly
/// works by luck fails:
///
///     it reads received data before finish()           reads NaN, or -1
///     it changes data being sent before finish()       Error
///     all ranks send first and receive later           deadlock (Sends::synchronous)
///     it relies on one rank being faster than another  now and then a rank is late (chaos_delay)
class ChaosTransport final : public TransportLayer {
 public:
  /// @param inner   the layer below; its sends must be synchronous.
  /// @param seed    seed of the delays.
  /// @param number  this rank in the job, so that ranks differ.
  /// @param device  device of the tensors; outlives the layer.
  ChaosTransport(Transport& inner, std::uint32_t seed, int number, Device& device);

  /// Fills the receive buffers with one bits; until finish() the messages are received into other buffers.
  Ticket start(std::span<const Transfer> transfers) override;
  /// @throws Error  if sent data has changed since start().
  void finish(Ticket ticket) override;
  void enter(const Collective& collective) override;

 private:
  /// A transfer in flight.
  struct Held {
    Transfer transfer;                // as the program started it
    Buffer arrives;                   // receive buffer until finish()
    std::vector<std::uint8_t> bytes;  // copy of the sent data, or of the one bits in the receive buffer
  };

  Held hold(const Transfer& transfer);
  Buffer take(std::int64_t bytes);
  void let_go(const Held& held);
  void delay();

  const std::uint32_t seed_;
  const int number_;
  MemoryLedger ledger_;  // separate: this memory is not the program's
  DeviceMemory memory_;
  std::unique_ptr<Stream> copies_;            // with NCCL, later messages may be in flight on stream()
  std::uint32_t delays_ = 0;                  // number drawn so far
  std::map<Ticket, std::vector<Held>> held_;  // in flight
  std::vector<Buffer> free_;                  // kept for reuse: freeing GPU memory waits for all its work
};

}  // namespace rankwise
