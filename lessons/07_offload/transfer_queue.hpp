#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "common/program/time_ledger.hpp"

/// @file
/// Blocks that come and go over a link while this rank computes.

namespace rankwise {

class TransferQueue;

/// A block on its way, which has to be waited for: given up without that, it ends the job. Given up by an exception on its
/// way out, it ends the queue: what has begun is awaited, so that the memory is free, and nothing else is moved any more.
class BlockTransfer {
 public:
  BlockTransfer() = default;  ///< nothing to wait for
  ~BlockTransfer();
  BlockTransfer(BlockTransfer&& other) noexcept;             ///< leaves @p other with nothing to wait for
  BlockTransfer& operator=(BlockTransfer&& other) noexcept;  ///< as above; this one has nothing to wait for

  /// Returns when the block has arrived: its memory may be used again. Nothing more happens when it is called again. The
  /// time spent here is exposed; the caller counts it.
  /// @throws Error  what went wrong first in any transfer of the queue, from then on at every call.
  void wait();

 private:
  friend class TransferQueue;
  BlockTransfer(TransferQueue* queue, std::int64_t number, std::string label, SourceLocation where);

  TransferQueue* queue_ = nullptr;
  std::int64_t number_ = 0;
  std::string label_;
  SourceLocation where_ = SourceLocation::current();
  int exceptions_ = 0;  // that were on their way when it was made
};

/// A link between two memories: two threads, one for what comes and one for what goes, each in the order in which it was
/// asked.
///
///     program   fetch 1  store 0  fetch 2 | wait 1  compute  store 1  fetch 3 | ...
///     coming    [ block 1 ]   [ block 2 ]              [ block 3 ]
///     going              [ block 0 ]              [ block 1 ]
///
/// The two go on beside each other, but one block comes and goes in the order of the calls: what is fetched is what the
/// last store() before it brought, and a block is not overwritten before the fetch() before it has it. So a fetch may have
/// to wait for a store behind others, and the fetches after it wait too.
///
/// The queue outlives its transfers, and memory its transfer.
class TransferQueue {
 public:
  /// @param time  of the rank: its trace shows what the threads do. Outlives the queue.
  explicit TransferQueue(TimeLedger& time);
  /// Ends the threads: all transfers were waited for, or have been given up by an exception on its way out.
  ~TransferQueue();
  TransferQueue(const TransferQueue&) = delete;
  TransferQueue& operator=(const TransferQueue&) = delete;

  /// Begins to bring a block here. Nobody touches where it comes to until the transfer was waited for.
  /// @param block  its number among all that come and go over this link.
  /// @param move   does it, on a thread of the queue.
  /// @param where  the line of the caller.
  [[nodiscard]] BlockTransfer fetch(std::int64_t block, std::function<void()> move,
                                    SourceLocation where = SourceLocation::current());
  /// Begins to bring a block back. Nobody changes it until the transfer was waited for; otherwise as fetch().
  [[nodiscard]] BlockTransfer store(std::int64_t block, std::function<void()> move,
                                    SourceLocation where = SourceLocation::current());

  /// What the thread that fetches has done, as spans of Work::fetching; a ledger beside the rank's own.
  const TimeLedger& fetch_time() const { return in_.time; }
  /// As above, of the thread that stores, as spans of Work::storing.
  const TimeLedger& store_time() const { return out_.time; }

 private:
  friend class BlockTransfer;

  /// A transfer that is not done.
  struct Job {
    std::int64_t number;  // of both directions together, from 1
    std::int64_t block;
    std::function<void()> move;
    std::string label;
    SourceLocation where;
  };
  /// One direction.
  struct Lane {
    explicit Lane(TimeLedger& beside) : time(beside) {}
    std::deque<Job> jobs;  // by number; the first one may be under way
    TimeLedger time;
    std::thread thread;
  };

  BlockTransfer start(Lane& lane, Job job);
  void run(Lane& lane, const Lane& other);
  bool may_begin(const Lane& lane, const Lane& other) const;
  bool is_done(std::int64_t number) const;
  void wait_for(std::int64_t number);
  void take_back(std::int64_t number);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t started_ = 0;    // transfers so far
  std::exception_ptr failure_;  // the first one; nothing is moved after it
  bool ending_ = false;
  Lane in_, out_;
};

}  // namespace rankwise
