#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "common/messages/group.hpp"
#include "common/program/pending.hpp"
#include "common/program/time_ledger.hpp"

/// @file
/// Collectives that overlap with this rank's computation.

namespace rankwise {

/// A thread that runs the collectives of a group one at a time, in the order in which they were started. MPI makes
/// progress only inside calls of MPI, so a rank that computes needs a second thread for communication.
///
/// Devices are ordered in the same way: a collective reads the results of all work given to compute() before
/// start(), and work given to compute() after wait() sees the collective's result; in between the two run
/// concurrently.
///
/// All ranks start the same collectives in the same order. While one is under way nothing else may use the group.
/// An exception in the thread ends the job (abort_job()), but RankFailure is thrown where its collective is waited for.
class CommunicationQueue {
 public:
  /// @param group  group of the collectives; outlives the queue.
  /// @param time   ledger in which waiting is counted as exposed communication; outlives the queue.
  CommunicationQueue(Group& group, TimeLedger& time);
  /// Ends the thread after all started collectives are done; during stack unwinding after the one that is under way, or
  /// without it if that takes longer than a second.
  ~CommunicationQueue();
  CommunicationQueue(const CommunicationQueue&) = delete;
  CommunicationQueue& operator=(const CommunicationQueue&) = delete;

  /// Starts a collective: @p work runs on the other thread after all collectives started before it. In a rehearsal
  /// it runs at once, on the calling thread. Until wait()
  /// the caller neither changes what it reads nor touches what it writes. Time spent in wait() is exposed
  /// communication.
  /// @param label  name of the data for traces and error messages, as "bucket 2"; the same on all ranks.
  /// @param work   calls collectives of the group.
  /// @param where  the line of the caller.
  [[nodiscard]] Pending start(std::string label, std::function<void(Group&)> work,
                              SourceLocation where = SourceLocation::current());

  /// Time ledger of the thread, in addition to the rank's own.
  const TimeLedger& time() const { return thread_time_; }

 private:
  /// A collective that has not begun yet.
  struct Job {
    std::string label;
    std::function<void(Group&)> work;
    SourceLocation where;
    Moment handed{};  // virtual time at which it was handed over
    Event ready{};    // on the device: its input is ready
  };

  /// End of a collective.
  struct End {
    Moment moment{};  // in virtual time
    Event point{};    // on the device
  };

  void wait_for(std::int64_t number, std::int64_t handle, SourceLocation where);
  void run();
  End perform(const Job& job);

  Group& group_;
  TimeLedger& time_;
  TimeLedger thread_time_{time_};
  int exceptions_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;               // not begun yet
  std::int64_t started_ = 0;           // number of collectives started so far
  std::int64_t done_ = 0;              // number of collectives done so far
  bool working_ = false;               // true while a collective runs
  std::exception_ptr failure_;         // a rank has died: the thread has ended
  std::map<std::int64_t, End> ended_;  // by number, until waited for
  bool ending_ = false;
  std::thread thread_;  // last member: it uses all others
};

}  // namespace rankwise
