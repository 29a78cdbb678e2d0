#pragma once

#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/messages/communicator.hpp"
#include "common/messages/flight_recorder.hpp"

/// @file
/// The watchdog: ends a job whose ranks wait for each other in vain, and says who waits for what.

namespace rankwise {

/// A thread of each rank that looks at the rank's flight recorder 20 times a second, over messages of its own.
///
/// When something has been under way for too long without any movement (FlightRecord::longest_s()), rank 0 asks all
/// ranks for their records. If it finds the same, it prints diagnose() and ends the job with exit_watchdog. A rank that
/// does not answer within 2 s is named as silent. If rank 0 itself is silent, the rank that gave the alarm asks.
///
///     rank 2                    rank 0                                    rank 1, 3
///     alarm ------------------> question --------------------------------> answer with its record
///                               diagnose(), end of the job <-------------'
///
/// A watchdog that looks much later than it wanted was stopped, and so was its rank (SIGSTOP, a suspended job, a closed
/// laptop). What the others did meanwhile it cannot know: from then on all time counts anew.
///
/// All ranks make and destroy it together. It is made last, so that it is destroyed first: then a rank that left its
/// loop early waits there for the others, answers, and is named.
class Watchdog {
 public:
  /// @param recorder   of this rank; outlives the watchdog.
  /// @param timeout_s  > 0; how long is too long.
  Watchdog(FlightRecorder& recorder, double timeout_s);
  /// Returns when all ranks have come here; at once while an exception is on its way out.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  enum class End { none, together, at_once };

  void run();
  bool look_after(End end);
  void notice_a_stop(Clock::time_point now);
  void watch(Clock::time_point now);
  void receive_all();
  void send(int rank, int tag, std::string text);
  void ask_all(Clock::time_point now);
  void conclude();

  FlightRecorder& recorder_;
  const double timeout_s_;
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
  std::optional<Clock::time_point> alarm_;   // since when this rank waits for rank 0 to ask
  std::optional<Clock::time_point> asked_;   // since when this rank waits for answers
  std::vector<FlightRecord> answers_;        // by rank
  MPI_Request all_ended_ = MPI_REQUEST_NULL;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace rankwise
