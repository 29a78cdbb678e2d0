#include "common/messages/communication_queue.hpp"

#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "common/messages/rehearsal/rehearsal.hpp"
#include "common/program/rank_failure.hpp"

namespace rankwise {

namespace {

/// Time that a collective may take to end while an exception is on its way out: it uses objects that are destroyed
/// next.
constexpr std::chrono::seconds time_to_end{1};

}  // namespace

CommunicationQueue::CommunicationQueue(Group& group, TimeLedger& time)
    : group_(group), time_(time), exceptions_(std::uncaught_exceptions())
{
  if (!Rehearsal::current()) thread_ = std::thread([this] { run(); });
}

CommunicationQueue::~CommunicationQueue()
{
  if (!thread_.joinable()) return;
  const bool failing = std::uncaught_exceptions() > exceptions_;
  bool working = false;
  {
    std::unique_lock lock(mutex_);
    ending_ = true;
    changed_.notify_all();
    if (failing) {
      jobs_.clear();
      const auto idle = [&] { return !working_; };
      if (can_survive())  // after a rank's death no call of MPI waits
        changed_.wait(lock, idle);
      else
        working = !changed_.wait_for(lock, time_to_end, idle);
    }
  }
  // A thread that still works probably waits for ranks that wait for this one; it ends with the job, which is about to end.
  if (working)
    thread_.detach();
  else
    thread_.join();
}

Pending CommunicationQueue::start(std::string label, std::function<void(Group&)> work, SourceLocation where)
{
  FlightRecorder* recorder = group_.recorder();
  const std::int64_t handle = recorder != nullptr ? recorder->handle_started(label, where) : 0;
  std::int64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({label, std::move(work), where, group_.clock() ? group_.clock()->handed_over() : Moment{},
                     group_.compute().record()});
    number = ++started_;
  }
  changed_.notify_all();
  if (Rehearsal::current()) {
    ended_.emplace(++done_, perform(jobs_.front()));
    jobs_.pop_front();
  }
  return {fmt::format("the collective that was started here ({})", label),
          [this, number, handle](SourceLocation waiting) { wait_for(number, handle, waiting); }, [] {}, where};
}

void CommunicationQueue::wait_for(std::int64_t number, std::int64_t handle, SourceLocation where)
{
  if (FlightRecorder* recorder = group_.recorder()) recorder->handle_waited(handle);
  const auto span = time_.span(Work::exposed, "waiting for a collective", where);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= number || failure_ != nullptr; });
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  const End end = ended_.extract(number).mapped();
  group_.compute().wait(end.point);
  if (VirtualClock* clock = group_.clock()) clock->wait_for(end.moment);
}

CommunicationQueue::End CommunicationQueue::perform(const Job& job)
{
  const CollectiveLabel label(job.label);
  VirtualClock* const clock = group_.clock();
  End end;
  if (clock) clock->begin(job.handed, job.label);
  {
    const auto span = thread_time_.span(Work::hidden, job.label, job.where);
    group_.follow_compute(false);
    group_.stream().wait(job.ready);
    job.work(group_);
    end.point = group_.stream().record();
    group_.follow_compute(true);
  }
  if (clock) end.moment = clock->end();
  return end;
}

void CommunicationQueue::run()
{
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ending_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    working_ = true;
    lock.unlock();
    End end;
    std::exception_ptr failure;
    try {
      end = perform(job);
    } catch (const RankFailure&) {
      failure = std::current_exception();
    }
    lock.lock();
    working_ = false;
    failure_ = failure;
    if (failure == nullptr) ended_.emplace(++done_, end);
    changed_.notify_all();
    if (failure != nullptr) return;
  }
}

}  // namespace rankwise
