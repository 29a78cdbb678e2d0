#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "common/program/pending.hpp"
#include "common/program/time_ledger.hpp"

/// @file
/// Transfers of blocks over a link while this rank computes.

namespace rankwise {

/// A link between two tiers: two threads, one that fetches blocks and one that stores them, each in the order of
/// the calls.
///
///     program   fetch 1  store 0  fetch 2 | wait 1  compute  store 1  fetch 3 | ...
///     fetching  [ block 1 ]   [ block 2 ]              [ block 3 ]
///     storing            [ block 0 ]              [ block 1 ]
///
/// The two threads run concurrently, but transfers of the same block keep the order of the calls: a fetch() returns
/// what the last store() before it wrote, and a store() does not overwrite a block that an earlier fetch() still
/// reads. So a fetch may wait for a store that is queued after others, and the fetches after it wait too.
///
/// The queue outlives its transfers, and the memory of a transfer outlives it. If an exception destroys a transfer,
/// the queue ends: transfers that have started are completed, so that their memory may be freed, and no others start.
/// wait() throws the first failure of any transfer of the queue, from then on at every call. The time spent in it is
/// exposed; the caller counts it.
class TransferQueue {
 public:
  /// @param time  ledger of the rank, whose trace shows both threads; outlives the queue.
  explicit TransferQueue(TimeLedger& time);
  /// Ends the threads, after all transfers have been waited for, or destroyed by an exception.
  ~TransferQueue();
  TransferQueue(const TransferQueue&) = delete;
  TransferQueue& operator=(const TransferQueue&) = delete;

  /// Starts to fetch a block. Its destination must not be touched until the transfer has been waited for.
  /// @param block  its number among all blocks of this link.
  /// @param move   moves the bytes, on a thread of the queue.
  /// @param where  line of the caller.
  [[nodiscard]] Pending fetch(std::int64_t block, std::function<void()> move,
                              SourceLocation where = SourceLocation::current());
  /// Starts to store a block. Its source must not be changed until the transfer has been waited for; otherwise as
  /// fetch().
  [[nodiscard]] Pending store(std::int64_t block, std::function<void()> move,
                              SourceLocation where = SourceLocation::current());

 private:
  /// A transfer that is not over.
  struct Job {
    std::int64_t block;
    std::function<void()> move;
    std::string label;
    SourceLocation where;
    std::int64_t number = 0;  // over both directions, from 1
  };
  /// One direction of the link.
  struct Lane {
    Work work;
    TimeLedger time;
    std::deque<Job> jobs{};  // by number; the first one may be under way
    std::thread thread{};
  };

  Pending start(Lane& lane, Job job);
  void run(Lane& lane, const Lane& other);
  bool may_begin(const Lane& lane, const Lane& other) const;
  bool is_done(std::int64_t number) const;
  void wait_for(std::int64_t number, bool abandoned);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t started_ = 0;    // number of transfers so far
  std::exception_ptr failure_;  // first failure; no transfer starts after it
  bool ending_ = false;
  Lane in_, out_;
};

}  // namespace rankwise
