#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "common/messages/transport.hpp"

/// @file
/// The traffic ledger: what this rank has sent, by group and collective, counted where messages leave.

namespace rankwise {

/// Messages and their bytes.
struct Traffic {
  std::int64_t messages = 0;    ///< messages sent
  std::int64_t bytes = 0;       ///< bytes sent, or handed to the library's own collective
  std::int64_t read_bytes = 0;  ///< bytes read from other ranks' shared memory

  /// Both together.
  Traffic& operator+=(const Traffic& other);
  /// What was added to @p before to give this.
  Traffic operator-(const Traffic& before) const;
  /// The same numbers.
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

/// What this rank has sent so far. Several threads may count at once.
class TrafficLedger {
 public:
  /// Counts what was sent.
  /// @param group       name of the group.
  /// @param collective  name of the collective; "send" outside of any.
  void count(const std::string& group, const std::string& collective, const Traffic& traffic);

  /// What went through a group in one kind of collective.
  Traffic of(const std::string& group, const std::string& collective) const;
  /// What went through a group.
  Traffic of(const std::string& group) const;
  /// What went through all groups.
  Traffic total() const;
  /// By group and collective.
  std::map<std::string, std::map<std::string, Traffic>> all() const;
  /// Starts from zero.
  void clear();

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::map<std::string, Traffic>> traffic_;
};

/// The layer that counts what leaves.
class CountingTransport final : public TransportLayer {
 public:
  /// @param inner   where messages go on to.
  /// @param ledger  where they are counted; outlives the layer.
  /// @param group   the name under which.
  CountingTransport(Transport& inner, TrafficLedger& ledger, std::string group)
      : TransportLayer(inner), ledger_(ledger), group_(std::move(group))
  {
  }

  Ticket start(std::span<const Transfer> transfers) override;
  void enter(const Collective& collective) override;
  void leave() override;

 private:
  TrafficLedger& ledger_;
  std::string group_;
  std::string collective_ = "send";
};

}  // namespace rankwise
