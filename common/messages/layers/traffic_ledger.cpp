#include "common/messages/layers/traffic_ledger.hpp"

#include <algorithm>

namespace rankwise {

Traffic& Traffic::operator+=(const Traffic& other)
{
  messages += other.messages;
  bytes += other.bytes;
  read_bytes += other.read_bytes;
  return *this;
}

Traffic Traffic::operator-(const Traffic& before) const
{
  return {messages - before.messages, bytes - before.bytes, read_bytes - before.read_bytes};
}

void TrafficLedger::count(const std::string& group, const std::string& collective, const Traffic& traffic)
{
  const std::lock_guard lock(mutex_);
  traffic_[group][collective] += traffic;
}

void TrafficLedger::count_to(const std::string& group, int receiver, std::int64_t bytes)
{
  const std::lock_guard lock(mutex_);
  receivers_[group][receiver] += bytes;
}

std::map<int, std::int64_t> TrafficLedger::receivers_of(const std::string& group) const
{
  const std::lock_guard lock(mutex_);
  const auto found = receivers_.find(group);
  return found == receivers_.end() ? std::map<int, std::int64_t>{} : found->second;
}

Traffic TrafficLedger::of(const std::string& group, const std::string& collective) const
{
  const auto all_groups = all();
  const auto found = all_groups.find(group);
  if (found == all_groups.end() || !found->second.contains(collective)) return {};
  return found->second.at(collective);
}

Traffic TrafficLedger::of(const std::string& group) const
{
  Traffic sum;
  const auto all_groups = all();
  if (const auto found = all_groups.find(group); found != all_groups.end())
    for (const auto& [collective, traffic] : found->second) sum += traffic;
  return sum;
}

Traffic TrafficLedger::total() const
{
  Traffic sum;
  for (const auto& [group, collectives] : all())
    for (const auto& [collective, traffic] : collectives) sum += traffic;
  return sum;
}

std::map<std::string, std::map<std::string, Traffic>> TrafficLedger::all() const
{
  const std::lock_guard lock(mutex_);
  return traffic_;
}

void TrafficLedger::clear()
{
  const std::lock_guard lock(mutex_);
  traffic_.clear();
  receivers_.clear();
}

void TrafficLedger::count_axis(const std::string& axis, int by)
{
  const std::lock_guard lock(mutex_);
  counted_axes_[axis] += by;
}

void TrafficLedger::record()
{
  const std::lock_guard lock(mutex_);
  recording_ = true;
}

bool TrafficLedger::recording() const
{
  const std::lock_guard lock(mutex_);
  return recording_;
}

void TrafficLedger::keep(MessageEvent event)
{
  const std::lock_guard lock(mutex_);
  event.counted = std::ranges::any_of(
      counted_axes_, [&](const auto& axis) { return axis.second > 0 && is_of_axis(event.group, axis.first); });
  events_.push_back(std::move(event));
}

std::vector<MessageEvent> TrafficLedger::events() const
{
  const std::lock_guard lock(mutex_);
  return events_;
}

std::vector<std::int64_t> sent_to_ranks(const TrafficLedger& ledger, const std::string& axis, int ranks)
{
  std::vector<std::int64_t> sent(static_cast<std::size_t>(ranks));
  for (const auto& [group, collectives] : ledger.all())
    if (is_of_axis(group, axis))
      for (const auto& [receiver, bytes] : ledger.receivers_of(group))
        sent[static_cast<std::size_t>(receiver)] += bytes;
  return sent;
}

bool is_of_axis(const std::string& group, const std::string& axis)
{
  return group == axis || group.starts_with(axis + " ");
}

MessageEvent CountingTransport::event_of(const Transfer& transfer)
{
  const auto [span, lane] = TimeLedger::innermost_span();
  const std::string_view label = CollectiveLabel::current();
  const bool sends = transfer.direction == Transfer::Direction::send, alone = collective_.algorithm.empty();
  return {.sends = sends,
          .peer = ranks_in_job_.at(static_cast<std::size_t>(transfer.peer)),
          .number = numbers_[{sends, transfer.peer}]++,
          .bytes = transfer.data.bytes(),
          .group = group_,
          .collective = std::string(collective_.name),
          .call = alone ? 0 : calls_,
          .purpose = std::string(label.empty() ? span : label),
          .all_bytes = alone ? transfer.data.bytes() : collective_.count * bytes_of(collective_.type),
          .counted = false,
          .lane = lane,
          .where = alone ? transfer.where : collective_.where,
          .time = event_time()};
}

Ticket CountingTransport::start(std::span<const Transfer> transfers)
{
  const bool recording = ledger_.recording();
  std::vector<MessageEvent> received;
  for (const Transfer& transfer : transfers) {
    if (!recording || transfer.data.elements() == 0) continue;
    MessageEvent event = event_of(transfer);
    if (event.sends)
      ledger_.keep(std::move(event));
    else
      received.push_back(std::move(event));
  }
  const Ticket ticket = TransportLayer::start(transfers);  // refuses ranks that do not exist
  Traffic sent;
  for (const Transfer& transfer : transfers) {
    if (transfer.direction != Transfer::Direction::send || transfer.data.elements() == 0) continue;
    sent += {.messages = 1, .bytes = transfer.data.bytes()};
    ledger_.count_to(group_, ranks_in_job_[static_cast<std::size_t>(transfer.peer)], transfer.data.bytes());
  }
  if (sent.messages > 0) ledger_.count(group_, std::string(collective_.name), sent);
  if (!received.empty()) awaited_[ticket] = std::move(received);
  return ticket;
}

void CountingTransport::finish(Ticket ticket)
{
  TransportLayer::finish(ticket);
  auto received = awaited_.extract(ticket);
  if (received.empty()) return;
  for (MessageEvent& event : received.mapped()) {
    event.time = event_time();
    if (const std::string_view label = CollectiveLabel::current(); !label.empty()) event.purpose = label;
    ledger_.keep(std::move(event));
  }
}

void CountingTransport::enter(const Collective& collective)
{
  collective_ = collective;
  ++calls_;
  TransportLayer::enter(collective);
}

void CountingTransport::leave()
{
  collective_ = {"send", ""};
  TransportLayer::leave();
}

}  // namespace rankwise
