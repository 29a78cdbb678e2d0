#include "common/messages/layers/traffic_ledger.hpp"

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

Ticket CountingTransport::start(std::span<const Transfer> transfers)
{
  const Ticket ticket = TransportLayer::start(transfers);  // refuses ranks that do not exist
  Traffic sent;
  for (const Transfer& transfer : transfers) {
    if (transfer.direction != Transfer::Direction::send || transfer.data.elements() == 0) continue;
    sent += {.messages = 1, .bytes = transfer.data.bytes()};
    ledger_.count_to(group_, ranks_in_job_[static_cast<std::size_t>(transfer.peer)], transfer.data.bytes());
  }
  if (sent.messages > 0) ledger_.count(group_, collective_, sent);
  return ticket;
}

void CountingTransport::enter(const Collective& collective)
{
  collective_ = collective.name;
  TransportLayer::enter(collective);
}

void CountingTransport::leave()
{
  collective_ = "send";
  TransportLayer::leave();
}

}  // namespace rankwise
