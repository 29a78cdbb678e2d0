#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/messages/communicator.hpp"
#include "common/messages/transport.hpp"
#include "common/messages/watchdog/flight_record.hpp"
#include "common/messages/watchdog/message_counts.hpp"
#include "common/program/time_ledger.hpp"

/// @file
/// The flight recorder: this rank's pending and most recent communication, for diagnosis when the job hangs.

namespace rankwise {

/// Records the communication of one rank. Thread-safe; the collectives of one group come from one thread at a time.
///
/// @cost  a mutex for each call; no memory is allocated after the first few collectives of each group.
class FlightRecorder {
 public:
  /// Number of collectives kept for each group.
  static constexpr std::size_t kept_calls = 8;

  /// @param time  as for follow().
  explicit FlightRecorder(const TimeLedger* time = nullptr) : time_(time) {}

  /// From now on the open span of @p time describes what the rank does outside of collectives; null: nothing does.
  void follow(const TimeLedger* time);

  /// Number of a group in this recorder.
  using Track = std::size_t;
  /// Registers a group.
  Track open_track(const std::string& group, std::vector<int> members);
  /// Ends a group. Its last collectives remain recorded until a group with the same name and ranks is registered.
  void close_track(Track track);

  /// A collective begins.
  void enter(Track track, const Collective& collective);
  /// A collective ends. With @p made false it is discarded, because the call was rejected.
  void leave(Track track, bool made = true);
  /// Transfers begin.
  /// @param ticket  ticket with which they will be finished.
  void start(Track track, Ticket ticket, std::span<const Transfer> transfers);
  /// This rank begins to wait for transfers; outside of collectives they are labelled CollectiveLabel::current().
  void wait(Track track, Ticket ticket);
  /// Transfers are done.
  void finish(Track track, Ticket ticket);

  /// An asynchronous operation was started.
  /// @return  handle to pass to handle_waited(), once.
  std::int64_t handle_started(std::string_view label, SourceLocation where);
  /// An asynchronous operation was waited for, or is about to be.
  void handle_waited(std::int64_t handle);

  /// The program itself calls MPI.
  /// @param where  return address of the call.
  /// @return  number to pass to mpi_call_ended(), once.
  std::int64_t mpi_call_began(std::string_view name, int peer, std::int64_t bytes, const void* where);
  /// A call of MPI has returned.
  void mpi_call_ended(std::int64_t call);
  /// The program itself has sent (or, if not @p sends, received) a message without a transport.
  /// @param peer  the other rank, as its rank in the job.
  void count_mpi_message(bool sends, int peer);
  /// The program itself uses MPI functions whose messages cannot be counted: counts() omits them from now on.
  void do_not_count_mpi_messages();

  /// Sets whether the rank has finished its work.
  void set_finished(bool finished);

  /// Forgets all operations and messages, because a rank has died and the groups are gone.
  void forget();
  /// Restarts the times of all pending operations, because the rank itself was suspended.
  void restart_clocks();

  /// Snapshot of pending and most recent operations, without FlightRecord::idle_s, which only the watchdog knows.
  FlightRecord record() const;
  /// Messages sent and received since the start, by group, collective and rank.
  std::vector<MessageCount> counts() const;

 private:
  using Clock = std::chrono::steady_clock;

  struct Call {
    std::int64_t number = 0;
    Collective collective;  // its label is below
    std::string label;
    Clock::time_point began, ended;
    bool open = true;
    std::thread::id thread;
  };
  struct Message {
    Ticket ticket;
    Transfer::Direction direction;
    int peer;  // its rank in the job
    std::int64_t bytes;
    SourceLocation where;
    std::int64_t collective;  // number of the collective; 0 outside of any
    bool waited_for;
    Clock::time_point began;
    std::thread::id thread;
    std::size_t counted;  // index in GroupTrack::counts
    std::string label{};  // outside of collectives, once it is waited for
  };
  struct Counted {
    int peer;               // its rank in the job
    std::string_view name;  // name of the collective; empty outside of any
    SourceLocation where;   // the line that called the collective, or started the message
    std::int64_t sent = 0, received = 0;
  };
  struct GroupTrack {
    std::string group;
    std::vector<int> members;
    std::int64_t made = 0;  // number of earlier groups with this name and ranks
    bool open = true;
    std::int64_t calls = 0;
    std::vector<Call> last{};
    std::vector<Message> messages{};  // not finished yet
    std::vector<Counted> counts{};    // includes earlier groups with this name and ranks
  };
  struct MpiCall {
    std::int64_t number;
    MpiCallRecord record;  // its time is below
    Clock::time_point began;
  };
  struct Handle {
    std::int64_t number;
    std::string label;
    SourceLocation where;
    Clock::time_point began;
  };

  static std::size_t place_of_count(GroupTrack& track, int peer, std::string_view name, SourceLocation where);
  double still_s(Clock::time_point began, std::thread::id thread, Clock::time_point now) const;
  CallRecord record_of(const Call& call, Clock::time_point now) const;
  TrackRecord record_of(const GroupTrack& track, Clock::time_point now) const;

  const TimeLedger* time_;
  mutable std::mutex mutex_;
  std::vector<GroupTrack> tracks_;
  std::vector<Handle> handles_;  // not waited for yet
  std::int64_t handles_started_ = 0;
  std::vector<MpiCall> mpi_calls_;  // not returned yet
  std::int64_t mpi_calls_begun_ = 0;
  std::map<int, MessageCount> mpi_counts_;  // by rank: messages without a transport
  bool counts_mpi_messages_ = true;
  std::map<std::thread::id, Clock::time_point> moved_;  // latest begin or end of an operation of each thread
  Clock::time_point not_before_{};                      // times before this do not count
  bool finished_ = false;
};

/// The recorder of this process, which all its groups and MPI calls use by default.
FlightRecorder& flight_recorder();

/// The layer that records a group's messages in a flight recorder.
class WatchedTransport final : public TransportLayer {
 public:
  /// @param inner         the layer below.
  /// @param recorder      the recorder; outlives the layer.
  /// @param communicator  the same ranks.
  /// @param group         name of the group in the recorder.
  WatchedTransport(Transport& inner, FlightRecorder& recorder, const Communicator& communicator,
                   const std::string& group);
  ~WatchedTransport() override;

  Ticket start(std::span<const Transfer> transfers) override;
  void finish(Ticket ticket) override;
  void enter(const Collective& collective) override;
  void leave() override;

 private:
  FlightRecorder& recorder_;
  FlightRecorder::Track track_;
};

}  // namespace rankwise
