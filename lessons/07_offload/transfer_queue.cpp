#include "lessons/07_offload/transfer_queue.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/program/session.hpp"

namespace rankwise {

// ---- BlockTransfer ---------------------------------------------------------------------------------------------------

BlockTransfer::BlockTransfer(TransferQueue* queue, std::int64_t number, std::string label, SourceLocation where)
    : queue_(queue),
      number_(number),
      label_(std::move(label)),
      where_(where),
      exceptions_(std::uncaught_exceptions())
{
}

BlockTransfer::~BlockTransfer()
{
  if (queue_ == nullptr) return;
  if (std::uncaught_exceptions() > exceptions_) {
    queue_->take_back(number_);
    return;
  }
  abort_job({fmt::format("{}:{}: {}, which was begun here, was never waited for",
                         short_file_name(where_.file_name()), where_.line(), label_),
             exit_failure});
}

BlockTransfer::BlockTransfer(BlockTransfer&& other) noexcept
    : queue_(std::exchange(other.queue_, nullptr)),
      number_(other.number_),
      label_(std::move(other.label_)),
      where_(other.where_),
      exceptions_(other.exceptions_)
{
}

BlockTransfer& BlockTransfer::operator=(BlockTransfer&& other) noexcept
{
  BlockTransfer taken(std::move(other));
  std::swap(queue_, taken.queue_);
  std::swap(number_, taken.number_);
  std::swap(label_, taken.label_);
  std::swap(where_, taken.where_);
  std::swap(exceptions_, taken.exceptions_);
  return *this;
}

void BlockTransfer::wait()
{
  if (TransferQueue* queue = std::exchange(queue_, nullptr)) queue->wait_for(number_);
}

// ---- TransferQueue ------------------------------------------------------------------------------------------------------

TransferQueue::TransferQueue(TimeLedger& time) : in_(time), out_(time)
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

BlockTransfer TransferQueue::fetch(std::int64_t block, std::function<void()> move, SourceLocation where)
{
  return start(in_, {0, block, std::move(move), fmt::format("fetching block {}", block), where});
}

BlockTransfer TransferQueue::store(std::int64_t block, std::function<void()> move, SourceLocation where)
{
  return start(out_, {0, block, std::move(move), fmt::format("storing block {}", block), where});
}

BlockTransfer TransferQueue::start(Lane& lane, Job job)
{
  BlockTransfer transfer(this, 0, job.label, job.where);
  {
    const std::lock_guard lock(mutex_);
    transfer.number_ = job.number = ++started_;
    lane.jobs.push_back(std::move(job));
  }
  changed_.notify_all();
  return transfer;
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
        const auto span = lane.time.span(&lane == &in_ ? Work::fetching : Work::storing, job.label, job.where);
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
  const auto is_it = [number](const Job& job) { return job.number == number; };
  return std::none_of(in_.jobs.begin(), in_.jobs.end(), is_it) &&
         std::none_of(out_.jobs.begin(), out_.jobs.end(), is_it);
}

void TransferQueue::wait_for(std::int64_t number)
{
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return is_done(number); });
  if (failure_) std::rethrow_exception(failure_);
}

void TransferQueue::take_back(std::int64_t number)
{
  std::unique_lock lock(mutex_);
  if (!failure_) failure_ = std::make_exception_ptr(Error("a transfer was abandoned because of an exception"));
  changed_.wait(lock, [&] { return is_done(number); });
}

}  // namespace rankwise
