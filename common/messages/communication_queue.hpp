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
#include "common/program/time_ledger.hpp"

/// @file
/// Collectives that go on while this rank computes.

namespace rankwise {

class CommunicationQueue;

/// A collective that was started and has to be waited for. It ends the job if it is given up without that.
class Pending {
 public:
  Pending() = default;  ///< nothing to wait for
  ~Pending();
  Pending(Pending&& other) noexcept;             ///< leaves @p other with nothing to wait for
  Pending& operator=(Pending&& other) noexcept;  ///< as above; this one has nothing to wait for

  /// Returns when the collective is done: what it computed can be read. Time spent here is exposed communication.
  void wait();

 private:
  friend class CommunicationQueue;
  Pending(CommunicationQueue* queue, std::int64_t number, std::int64_t handle, std::string label,
          SourceLocation where);

  CommunicationQueue* queue_ = nullptr;
  std::int64_t number_ = 0;
  std::int64_t handle_ = 0;  // the flight recorder's number for it
  std::string label_;
  SourceLocation where_ = SourceLocation::current();
  int exceptions_ = 0;  // that were on their way when it was made
};

/// A thread that makes the collectives of a group, one after the other, in the order in which they were started. MPI
/// moves messages only while somebody calls it: so a rank that computes needs a second thread for them.
///
/// On a device it is the same: what the collective reads has been made by the work that compute() was given before
/// start(), and what compute() is given after wait() finds its result; in between the two go on beside each other.
///
/// All ranks start the same collectives in the same order. While any is under way nobody else uses the group. An
/// exception in the thread ends the job (abort_job()).
class CommunicationQueue {
 public:
  /// @param group  whose collectives; outlives the queue.
  /// @param time   where waiting is counted as exposed communication; outlives the queue.
  CommunicationQueue(Group& group, TimeLedger& time);
  /// Ends the thread when all that was started is done; at once if an exception is on its way out.
  ~CommunicationQueue();
  CommunicationQueue(const CommunicationQueue&) = delete;
  CommunicationQueue& operator=(const CommunicationQueue&) = delete;

  /// Starts a collective: @p work runs on the other thread as soon as those before it are done. What it reads and
  /// writes is left alone until wait().
  /// @param label  what it carries, for traces and messages, as "bucket 2"; the same on all ranks.
  /// @param work   calls collectives of the group.
  /// @param where  the line of the caller.
  [[nodiscard]] Pending start(std::string label, std::function<void(Group&)> work,
                              SourceLocation where = SourceLocation::current());

  /// What the thread has done, a ledger beside the rank's own.
  const TimeLedger& time() const { return thread_time_; }

 private:
  friend class Pending;

  /// One collective that waits for its turn.
  struct Job {
    std::string label;
    std::function<void(Group&)> work;
    SourceLocation where;
    Moment handed{};  // over, in virtual time
    Event ready{};    // what it reads is made, on the device
  };

  void wait_for(std::int64_t number, std::int64_t handle);
  void run();

  Group& group_;
  TimeLedger& time_;
  TimeLedger thread_time_{time_};
  int exceptions_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;      // not begun yet
  std::int64_t started_ = 0;  // collectives so far
  std::int64_t done_ = 0;     // of them
  bool working_ = false;      // on a collective, now
  /// When a collective was over.
  struct End {
    Moment moment{};  // in virtual time
    Event point{};    // on the device
  };
  std::map<std::int64_t, End> ended_;  // by number; until somebody waits for it
  bool ending_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace rankwise
