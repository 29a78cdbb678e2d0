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
/// The flight recorder: what this rank is doing with the others, and did last, to be looked at when nothing moves.

namespace rankwise {

/// The records of one rank. Any thread may call it; collectives of one group come from one thread at a time.
///
/// @cost  a mutex for each call; no memory is allocated once all groups have made a few collectives.
class FlightRecorder {
 public:
  /// How many collectives of a group are kept.
  static constexpr std::size_t kept_calls = 8;

  /// @param time  as follow() is given it.
  explicit FlightRecorder(const TimeLedger* time = nullptr) : time_(time) {}

  /// From now on the open span of @p time says what the rank is doing outside of collectives; null: nothing does.
  void follow(const TimeLedger* time);

  /// A group by its number here.
  using Track = std::size_t;
  /// A group begins.
  Track open_track(const std::string& group, std::vector<int> members);
  /// A group ends; what it did last stays known until another one of this name and these ranks begins.
  void close_track(Track track);

  /// A collective begins.
  void enter(Track track, const Collective& collective);
  /// It is over. With @p made false it never was one: whoever called it was refused.
  void leave(Track track, bool made = true);
  /// Transfers begin.
  /// @param ticket  with which they will be finished.
  void start(Track track, Ticket ticket, std::span<const Transfer> transfers);
  /// This rank waits for transfers from now on; outside of collectives they are for CollectiveLabel::current().
  void wait(Track track, Ticket ticket);
  /// They are done.
  void finish(Track track, Ticket ticket);

  /// Something that goes on beside the program was started.
  /// @return  what to give to handle_waited(), once.
  std::int64_t handle_started(std::string_view label, SourceLocation where);
  /// It was waited for, or is about to be.
  void handle_waited(std::int64_t handle);

  /// The program itself calls MPI.
  /// @param where  the address of the code that calls.
  /// @return  what to give to mpi_call_ended(), once.
  std::int64_t mpi_call_began(std::string_view name, int peer, std::int64_t bytes, const void* where);
  /// It has returned.
  void mpi_call_ended(std::int64_t call);
  /// The program itself has sent (or, if not @p sends, received) a message without a transport.
  /// @param peer  the other rank, by its number in the job.
  void count_mpi_message(bool sends, int peer);
  /// The program itself calls MPI in a way that does not let its messages be counted: mpi_messages() has none from now on.
  void do_not_count_mpi_messages();

  /// Whether the rank has ended its work.
  void set_finished(bool finished);

  /// Nothing counts as having been under way for longer than since now: the rank itself has not run for a while.
  void restart_clocks();

  /// What is under way, and what was last. Only the watchdog knows FlightRecord::idle_s.
  FlightRecord record() const;
  /// Communication sent and received since the start, by group, collective and rank.
  std::vector<MessageCount> counts() const;

 private:
  using Clock = std::chrono::steady_clock;

  struct Call {
    std::int64_t number = 0;
    Collective collective;  // without its label
    std::string label;
    Clock::time_point began, ended;
    bool open = true;
    std::thread::id thread;
  };
  struct Message {
    Ticket ticket;
    Transfer::Direction direction;
    int peer;  // by its number in the job
    std::int64_t bytes;
    SourceLocation where;
    std::int64_t collective;  // its number; 0 outside of any
    bool waited_for;
    Clock::time_point began;
    std::thread::id thread;
    std::size_t counted;  // in GroupTrack::counts
    std::string label{};  // outside of any collective, once it is waited for
  };
  struct Counted {
    int peer;               // by its number in the job
    std::string_view name;  // of the collective; empty outside of any
    SourceLocation where;   // the line that called it, or started the message
    std::int64_t sent = 0, received = 0;
  };
  struct GroupTrack {
    std::string group;
    std::vector<int> members;
    std::int64_t made = 0;  // groups like this before it
    bool open = true;
    std::int64_t calls = 0;
    std::vector<Call> last{};
    std::vector<Message> messages{};  // that are not finished
    std::vector<Counted> counts{};    // of groups like this before it too
  };
  struct MpiCall {
    std::int64_t number;
    MpiCallRecord record;  // without its time
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
  std::vector<Handle> handles_;  // not waited for
  std::int64_t handles_started_ = 0;
  std::vector<MpiCall> mpi_calls_;  // that have not returned
  std::int64_t mpi_calls_begun_ = 0;
  std::map<int, MessageCount> mpi_counts_;  // by rank, of messages without a transport
  bool counts_mpi_messages_ = true;
  std::map<std::thread::id, Clock::time_point> moved_;  // when each thread last began or ended something
  Clock::time_point not_before_{};                      // from when on time counts
  bool finished_ = false;
};

/// The recorder of this process, which all of its groups and calls of MPI tell unless they are given another one.
FlightRecorder& flight_recorder();

/// The layer that tells a flight recorder what goes through a group.
class WatchedTransport final : public TransportLayer {
 public:
  /// @param inner         where messages go on to.
  /// @param recorder      outlives the layer.
  /// @param communicator  the same ranks.
  /// @param group         the name under which.
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
