#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/messages/transport.hpp"
#include "common/program/trace.hpp"

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
  /// The traffic of @p n times as many messages.
  friend Traffic operator*(std::int64_t n, const Traffic& one)
  {
    return {n * one.messages, n * one.bytes, n * one.read_bytes};
  }
  /// True if all counts are equal.
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

  /// Counts (@p by = 1) or no longer counts (-1) the messages along an axis, those of the groups whose names begin with
  /// it, as traffic of a step, MessageEvent::counted.
  void count_axis(const std::string& axis, int by);
  /// Starts recording messages as events, for a trace.
  void record();
  /// True if messages are recorded.
  bool recording() const;
  /// Keeps an event, which is `counted` if its axis is at this moment.
  void keep(MessageEvent event);
  /// Events so far.
  std::vector<MessageEvent> events() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::map<std::string, Traffic>> traffic_;
  std::map<std::string, std::map<int, std::int64_t>> receivers_;
  std::map<std::string, int> counted_axes_;
  bool recording_ = false;
  std::vector<MessageEvent> events_;
};

/// Bytes sent along an axis so far, to each of @p ranks ranks of the job: in the groups whose names begin with the axis.
std::vector<std::int64_t> sent_to_ranks(const TrafficLedger& ledger, const std::string& axis, int ranks);

/// True if a group belongs to an axis: "dp" and "dp inside" belong to the axis "dp".
bool is_of_axis(const std::string& group, const std::string& axis);

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
  void finish(Ticket ticket) override;
  void enter(const Collective& collective) override;
  void leave() override;

 private:
  MessageEvent event_of(const Transfer& transfer);

  TrafficLedger& ledger_;
  std::string group_;
  std::vector<int> ranks_in_job_;
  Collective collective_{"send", ""};
  std::int64_t calls_ = 0;                                // collectives so far
  std::map<std::pair<bool, int>, std::int64_t> numbers_;  // messages to and from each rank so far, if recorded
  std::map<Ticket, std::vector<MessageEvent>> awaited_;   // being received, if recorded
};

}  // namespace rankwise
