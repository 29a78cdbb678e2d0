#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/messages/communicator.hpp"
#include "common/messages/watchdog/flight_recorder.hpp"
#include "common/messages/watchdog/rank_view.hpp"

/// @file
/// The watchdog: ends a deadlocked job and reports which rank waits for what.

namespace rankwise {

/// A thread on each rank that checks the rank's progress 20 times a second, and exchanges messages of its own.
///
/// A rank makes progress while it is in a kernel, and when it finishes a kernel, a block of a file or a message
/// (activity.hpp). When a rank has made none for longer than the timeout, rank 0 asks all ranks for their records.
/// If no rank makes progress any more, rank 0 prints diagnose() and ends the job with exit_watchdog. A rank that
/// does not answer within 2 s is reported as silent. If rank 0 itself is silent, the rank that raised the alarm
/// asks instead.
///
///     rank 2                    rank 0                                    rank 1, 3
///     alarm ------------------> question --------------------------------> answer with its record
///                               diagnose(), end of the job <-------------'
///
/// If a watchdog wakes much later than planned, its process was suspended (SIGSTOP, a suspended job, a closed
/// laptop). It cannot know what the other ranks did meanwhile, so all times are restarted.
///
/// While ranks are shown, rank 0 asks all ranks for their records five times a second and draws them (RankView). Its messages
/// are the watchdog's own, so the run itself sends nothing for it and waits for nothing.
///
/// All ranks create and end it together; run_program() does so for each job of several ranks. A rank that has
/// finished its work waits for the others at the end, and still answers and is reported.
class Watchdog {
 public:
  /// Default timeout.
  static constexpr double default_timeout_s = 300;

  /// @param recorder   this rank's flight recorder; outlives the watchdog.
  /// @param timeout_s  0: this rank raises no alarm. Ranks may have different ones: the first that expires raises it.
  explicit Watchdog(FlightRecorder& recorder, double timeout_s = default_timeout_s);
  /// Calls end_together(), but returns at once during stack unwinding.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Begins or ends to show on rank 0's terminal what all ranks do; all ranks make this call. At the end the lines are cleared.
  void show(bool shown);

  /// This rank has finished its work: waits until all ranks have, then ends the watchdog.
  void end_together();
  /// Ranks have died: watches those that are alive, which make this call together.
  void restart();

 private:
  using Clock = std::chrono::steady_clock;
  enum class End { none, together, at_once };

  void end(End how);
  void run();
  bool look_after(End end);
  void notice_a_stop(Clock::time_point now);
  void notice_activity(Clock::time_point now);
  double idle_s(Clock::time_point now) const;
  FlightRecord record(Clock::time_point now) const;
  void watch(Clock::time_point now);
  void receive_all();
  void send(int rank, int tag, std::string text);
  void ask_all(Clock::time_point now, double timeout_s);
  void keep_quiet(Clock::time_point now);
  void conclude(Clock::time_point now);
  void look(Clock::time_point now);

  FlightRecorder& recorder_;
  const double timeout_s_;
  const int exceptions_;  // in flight at construction
  Communicator communicator_;

  std::mutex mutex_;
  std::condition_variable changed_;
  End end_ = End::none;

  std::mutex drawing_;
  bool shown_ = false;

  /// A message being sent; MPI may still read its text.
  struct Sent {
    std::string text;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  // Used by the thread only.
  std::list<Sent> sent_;
  std::optional<Clock::time_point> looked_;  // time of the last check
  std::uint64_t finished_ = 0;               // Activity::finished at the last check
  Clock::time_point got_on_ = Clock::now();  // time at which this rank was last seen to make progress
  Clock::time_point quiet_until_{};          // earliest time of this rank's next alarm
  std::optional<Clock::time_point> alarm_;   // time at which this rank raised an alarm and began to wait for rank 0
  std::optional<Clock::time_point> asked_;   // time at which this rank began to wait for answers
  double asked_timeout_s_ = 0;               // timeout of the rank that raised the alarm
  std::vector<FlightRecord> answers_;        // by rank
  RankView view_;
  std::vector<FlightRecord> seen_;  // by rank: the latest record, to be shown
  std::vector<std::optional<Clock::time_point>>
      looking_;                    // by rank: time of the request for a record that has not come yet
  Clock::time_point next_look_{};  // time at which the ranks are drawn next
  MPI_Request all_ended_ = MPI_REQUEST_NULL;
  std::thread thread_;  // last member: it uses all others
};

/// Restarts the watchdog of this job, if it has one, for the ranks that are alive; forgets pending messages with
/// the dead.
void watch_survivors();

/// Shows what all ranks do, where the job has a watchdog, until it is destroyed; all ranks make and destroy it together.
class ShownRanks {
 public:
  /// @param shown  true to show them; false does nothing.
  explicit ShownRanks(bool shown);
  ~ShownRanks();
  ShownRanks(const ShownRanks&) = delete;
  ShownRanks& operator=(const ShownRanks&) = delete;

 private:
  bool shown_;
};

}  // namespace rankwise
