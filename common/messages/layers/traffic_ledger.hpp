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
/// The traffic ledger: what this rank has sent, by group and collective and by receiver, counted where messages leave.

namespace rankwise {

/// Communication and their bytes.
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
  /// Counts for whom it was.
  /// @param receiver  its number in the job.
  void count_to(const std::string& group, int receiver, std::int64_t bytes);

  /// What went through a group in one kind of collective.
  Traffic of(const std::string& group, const std::string& collective) const;
  /// What went through a group.
  Traffic of(const std::string& group) const;
  /// The bytes that went through a group, by the number that who received them has in the job. What the library's own
  /// collectives and shared memory carry is nobody's in particular, and not among them.
  std::map<int, std::int64_t> receivers_of(const std::string& group) const;
  /// What went through all groups.
  Traffic total() const;
  /// By group and collective.
  std::map<std::string, std::map<std::string, Traffic>> all() const;
  /// Starts from zero.
  void clear();

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::map<std::string, Traffic>> traffic_;
  std::map<std::string, std::map<int, std::int64_t>> receivers_;
};

/// The layer that counts what leaves.
class CountingTransport final : public TransportLayer {
 public:
  /// @param inner         where messages go on to.
  /// @param ledger        where they are counted; outlives the layer.
  /// @param group         the name under which.
  /// @param ranks_in_job  the number in the job of each rank of the group.
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
