#include "common/messages/layers/chaos_transport.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/philox.hpp"

namespace rankwise {

namespace {

/// The bytes of a tensor.
Tensor bytes_of(const Tensor& data)
{
  return Tensor(data.raw(), DType::u8, {data.bytes()});
}

}  // namespace

std::chrono::nanoseconds chaos_delay(std::uint32_t seed, int rank, std::uint32_t count)
{
  const PhiloxWords words = philox({count, 0, 0, 0}, {seed, static_cast<std::uint32_t>(rank)});
  if (words[0] % 8 != 0) return {};
  return std::chrono::nanoseconds(1 + words[1] % 2'000'000);
}

ChaosTransport::ChaosTransport(Transport& inner, std::uint32_t seed, int number, Device& device)
    : TransportLayer(inner), seed_(seed), number_(number), memory_{&device, &ledger_}, copies_(device.make_stream())
{
}

Ticket ChaosTransport::start(std::span<const Transfer> transfers)
{
  delay();
  std::vector<Held> held;
  std::vector<Transfer> passed_on;
  for (const Transfer& transfer : transfers) {
    if (transfer.data.bytes() == 0) continue;
    held.push_back(hold(transfer));
    const bool sends = transfer.direction == Transfer::Direction::send;
    const Tensor arrives(held.back().arrives.tensor().raw(), transfer.data.type(), {transfer.data.elements()});
    passed_on.push_back({transfer.direction, sends ? transfer.data : arrives, transfer.peer});
  }
  const Ticket ticket = TransportLayer::start(passed_on);
  held_.emplace(ticket, std::move(held));
  return ticket;
}

void ChaosTransport::finish(Ticket ticket)
{
  delay();
  TransportLayer::finish(ticket);
  std::vector<Held> held = std::move(held_.extract(ticket).mapped());
  for (const Held& transfer : held) let_go(transfer);
  copies_->synchronise();
  for (Held& transfer : held)
    if (!transfer.arrives.tensor().empty()) free_.push_back(std::move(transfer.arrives));
}

void ChaosTransport::enter(const Collective& collective)
{
  delay();
  TransportLayer::enter(collective);
}

ChaosTransport::Held ChaosTransport::hold(const Transfer& transfer)
{
  const Tensor& data = transfer.data;
  if (transfer.direction == Transfer::Direction::send)
    return {transfer, {}, to_host<std::uint8_t>(stream(), bytes_of(data))};
  Held held{transfer, take(data.bytes()), std::vector<std::uint8_t>(static_cast<std::size_t>(data.bytes()), 0xFF)};
  stream().copy(bytes_of(data), Tensor(std::span<std::uint8_t>(held.bytes), {data.bytes()}));
  return held;
}

void ChaosTransport::let_go(const Held& held)
{
  const auto& [transfer, arrives, sent] = held;
  if (transfer.direction == Transfer::Direction::receive)
    return copies_->copy(bytes_of(transfer.data), arrives.tensor().slice({0, transfer.data.bytes()}));
  const std::vector<std::uint8_t> now = to_host<std::uint8_t>(*copies_, bytes_of(transfer.data));
  const auto changed = std::mismatch(sent.begin(), sent.end(), now.begin()).first;
  check(changed == sent.end(),
        fmt::format("rank {} changed a message of {} bytes to rank {} while it was being sent, from byte {} on",
                    rank(), sent.size(), transfer.peer, changed - sent.begin()));
}

Buffer ChaosTransport::take(std::int64_t bytes)
{
  const auto fits = std::find_if(free_.begin(), free_.end(),
                                 [=](const Buffer& buffer) { return buffer.tensor().bytes() >= bytes; });
  if (fits == free_.end()) return Buffer(memory_, Category::communication, DType::u8, {bytes}, "message of chaos");
  Buffer found = std::move(*fits);
  free_.erase(fits);
  return found;
}

void ChaosTransport::delay()
{
  const std::chrono::nanoseconds delay = chaos_delay(seed_, number_, delays_++);
  if (delay.count() > 0) std::this_thread::sleep_for(delay);
}

}  // namespace rankwise
