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

/// @file
/// The watchdog: ends a job whose ranks wait for each other in vain, and says who waits for what.

namespace rankwise {

/// A thread of each rank that looks 20 times a second at what the rank gets done, and has messages of its own.
///
/// A rank gets on while it is in a kernel, and when it finishes one, a block of a file or a message (activity.hpp). When it
/// has not for too long, rank 0 asks all ranks for their records. If no rank gets on any more, it prints diagnose() and ends
/// the job with exit_watchdog. A rank that does not answer within 2 s is named as silent. If rank 0 itself is silent, the
/// rank that gave the alarm asks.
///
///     rank 2                    rank 0                                    rank 1, 3
///     alarm ------------------> question --------------------------------> answer with its record
///                               diagnose(), end of the job <-------------'
///
/// A watchdog that looks much later than it wanted was stopped, and so was its rank (SIGSTOP, a suspended job, a closed
/// laptop). What the others did meanwhile it cannot know: from then on all time counts anew.
///
/// All ranks make and end it together: run_program() for each job of several ranks. A rank that has done its work waits at
/// the end for the others, answers, and is named.
class Watchdog {
 public:
  /// How long is too long, unless the user says otherwise.
  static constexpr double default_timeout_s = 300;

  /// @param recorder   of this rank; outlives the watchdog.
  /// @param timeout_s  as set_timeout() is given it.
  explicit Watchdog(FlightRecorder& recorder, double timeout_s = default_timeout_s);
  /// As end_together(); returns at once while an exception is on its way out.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// How long is too long from now on. Ranks may differ: the first one that has waited for too long gives the alarm.
  /// @param timeout_s  0: this rank gives no alarm.
  void set_timeout(double timeout_s) { timeout_s_ = timeout_s; }

  /// This rank has ended its work: returns when all ranks have, and ends the watch.
  void end_together();

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

  FlightRecorder& recorder_;
  std::atomic<double> timeout_s_;
  const int exceptions_;  // that were on their way when it was made
  const Communicator communicator_;

  std::mutex mutex_;
  std::condition_variable changed_;
  End end_ = End::none;

  /// A message that MPI may still read.
  struct Sent {
    std::string text;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  // The thread's own.
  std::list<Sent> sent_;
  std::optional<Clock::time_point> looked_;  // the last time
  std::uint64_t finished_ = 0;               // Activity::finished at that time
  Clock::time_point got_on_ = Clock::now();  // when this rank was last seen to
  Clock::time_point quiet_until_{};          // when an alarm of this rank would say something new
  std::optional<Clock::time_point> alarm_;   // since when this rank waits for rank 0 to ask
  std::optional<Clock::time_point> asked_;   // since when this rank waits for answers
  double asked_timeout_s_ = 0;               // of the rank that gave the alarm
  std::vector<FlightRecord> answers_;        // by rank
  MPI_Request all_ended_ = MPI_REQUEST_NULL;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace rankwise
