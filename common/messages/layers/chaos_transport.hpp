#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "common/memory/device.hpp"
#include "common/messages/transport.hpp"

/// @file
/// `--chaos`: messages that take every liberty that they have, so that a program which relies on more breaks at
/// once.

namespace rankwise {

/// Which chaos.
struct Chaos {
  std::uint32_t seed = 0;  ///< the same seed gives the same delays
};

/// How late a rank is: most of the time not at all, else up to two milliseconds.
/// @param rank   by its number in the job.
/// @param count  how many delays it has asked for before.
std::chrono::nanoseconds chaos_delay(const Chaos& chaos, int rank, std::uint32_t count);

/// The layer of chaos. A correct program gives the same results under it; one that is wrong but mostly gets away
/// with it does not:
///
///     it reads what it receives before finish()        finds NaN, or -1
///     it changes what it sends before finish()         Error
///     all send first and receive later                 wait for each other for ever (Sends::synchronous)
///     it relies on one rank being faster than another  now and then a rank comes late (chaos_delay)
class ChaosTransport final : public TransportLayer {
 public:
  /// @param inner   where messages go on to; its sends are to be synchronous.
  /// @param chaos   which.
  /// @param number  of this rank in the job: ranks differ.
  /// @param device  whose memory the tensors lie in; outlives the layer.
  ChaosTransport(Transport& inner, const Chaos& chaos, int number, Device& device);

  /// Fills the tensors that receive with ones in all bits: the messages arrive elsewhere until finish().
  Ticket start(std::span<const Transfer> transfers) override;
  /// @throws Error  if what was sent is no longer what it was at start().
  void finish(Ticket ticket) override;
  void enter(const Collective& collective) override;

 private:
  /// A transfer under way.
  struct Held {
    Transfer transfer;                // as the program wants it
    Buffer arrives;                   // where it is received meanwhile
    std::vector<std::uint8_t> bytes;  // what was sent; or the ones that stand where it will be received
  };

  Held hold(const Transfer& transfer);
  Buffer take(std::int64_t bytes);
  void let_go(const Held& held);
  void delay();

  const Chaos chaos_;
  const int number_;
  MemoryLedger ledger_;  // of its own: what is held here is not the program's
  DeviceMemory memory_;
  std::unique_ptr<Stream> copies_;            // over NCCL, messages not yet wanted may be under way on stream()
  std::uint32_t delays_ = 0;                  // so far
  std::map<Ticket, std::vector<Held>> held_;  // under way
  std::vector<Buffer> free_;                  // kept: a GPU that gives memory back waits for all that is under way
};

}  // namespace rankwise
