#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/messages/transport.hpp"

/// @file
/// The traffic ledger: counts messages and bytes that this rank sends, by group and collective and by receiver, at
/// the transport.

namespace rankwise {

/// Number of messages and bytes.
struct Traffic {
  std::int64_t messages = 0;    ///< messages sent
  std::int64_t bytes = 0;       ///< bytes sent, or passed to the library's own collective
  std::int64_t read_bytes = 0;  ///< bytes read from other ranks through shared memory

  /// Adds the counts.
  Traffic& operator+=(const Traffic& other);
  /// The traffic since @p before.
  Traffic operator-(const Traffic& before) const;
  /// Whether all counts are equal.
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

/// Traffic of this rank so far. Thread-safe.
class TrafficLedger {
 public:
  /// Counts sent traffic.
  /// @param group       name of the group.
  /// @param collective  name of the collective; "send" outside of any.
  void count(const std::string& group, const std::string& collective, const Traffic& traffic);
  /// Counts sent bytes by receiver.
  /// @param receiver  its rank in the job.
  void count_to(const std::string& group, int receiver, std::int64_t bytes);

  /// Traffic of one kind of collective in a group.
  Traffic of(const std::string& group, const std::string& collective) const;
  /// Traffic of a group.
  Traffic of(const std::string& group) const;
  /// Bytes sent in a group, by the receiver's rank in the job. Traffic of the library's own collectives and of
  /// shared memory has no single receiver and is not included.
  std::map<int, std::int64_t> receivers_of(const std::string& group) const;
  /// Traffic of all groups.
  Traffic total() const;
  /// Traffic by group and collective.
  std::map<std::string, std::map<std::string, Traffic>> all() const;
  /// Resets all counts to zero.
  void clear();

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::map<std::string, Traffic>> traffic_;
  std::map<std::string, std::map<int, std::int64_t>> receivers_;
};

/// The layer that counts sent messages.
class CountingTransport final : public TransportLayer {
 public:
  /// @param inner         the layer below.
  /// @param ledger        the ledger; outlives the layer.
  /// @param group         name of the group in the ledger.
  /// @param ranks_in_job  rank in the job of each rank of the group.
  CountingTransport(Transport& inner, TrafficLedger& ledger, std::string group, std::vector<int> ranks_in_job)
      : TransportLayer(inner), ledger_(ledger), group_(std::move(group)), ranks_in_job_(std::move(ranks_in_job))
  {
  }

  Ticket start(std::span<const Transfer> transfers) override;
  void enter(const Collective& collective) override;
  void leave() override;

 private:
  TrafficLedger& ledger_;
  std::string group_;
  std::vector<int> ranks_in_job_;
  std::string collective_ = "send";
};

}  // namespace rankwise
