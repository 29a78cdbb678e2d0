#include "lessons/parallel/offload/transfer_queue.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/base/error.hpp"

namespace rankwise {

TransferQueue::TransferQueue(TimeLedger& time)
    : in_{Work::fetching, TimeLedger(time)}, out_{Work::storing, TimeLedger(time)}
{
  in_.thread = std::thread([this] { run(in_, out_); });
  out_.thread = std::thread([this] { run(out_, in_); });
}

TransferQueue::~TransferQueue()
{
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  in_.thread.join();
  out_.thread.join();
}

Pending TransferQueue::fetch(std::int64_t block, std::function<void()> move, SourceLocation where)
{
  return start(in_, {block, std::move(move), fmt::format("fetching block {}", block), where});
}

Pending TransferQueue::store(std::int64_t block, std::function<void()> move, SourceLocation where)
{
  return start(out_, {block, std::move(move), fmt::format("storing block {}", block), where});
}

Pending TransferQueue::start(Lane& lane, Job job)
{
  const std::string what = job.label + ", which was begun here,";
  const SourceLocation where = job.where;
  std::int64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    number = job.number = ++started_;
    lane.jobs.push_back(std::move(job));
  }
  changed_.notify_all();
  return {what, [this, number](SourceLocation) { wait_for(number, false); },
          [this, number] { wait_for(number, true); }, where};
}

void TransferQueue::run(Lane& lane, const Lane& other)
{
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return lane.jobs.empty() ? ending_ : may_begin(lane, other); });
    if (lane.jobs.empty()) return;
    const Job& job = lane.jobs.front();  // the reference stays valid: jobs are only appended
    const bool failed = failure_ != nullptr;
    std::exception_ptr failure;
    lock.unlock();
    try {
      if (!failed) {
        const auto span = lane.time.span(lane.work, job.label, job.where);
        job.move();
      }
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (!failure_) failure_ = failure;
    lane.jobs.pop_front();
    changed_.notify_all();
  }
}

bool TransferQueue::may_begin(const Lane& lane, const Lane& other) const
{
  const Job& next = lane.jobs.front();
  return std::none_of(other.jobs.begin(), other.jobs.end(),
                      [&](const Job& job) { return job.number < next.number && job.block == next.block; });
}

bool TransferQueue::is_done(std::int64_t number) const
{
  const auto has = [number](const Lane& lane) { return std::ranges::count(lane.jobs, number, &Job::number) > 0; };
  return !has(in_) && !has(out_);
}

void TransferQueue::wait_for(std::int64_t number, bool abandoned)
{
  std::unique_lock lock(mutex_);
  if (abandoned && !failure_)
    failure_ = std::make_exception_ptr(Error("a transfer was abandoned because of an exception"));
  changed_.wait(lock, [&] { return is_done(number); });
  if (failure_ && !abandoned) std::rethrow_exception(failure_);
}

}  // namespace rankwise
