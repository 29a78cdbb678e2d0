#include "common/messages/watchdog.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "common/error.hpp"
#include "common/messages/diagnosis.hpp"

namespace rankwise {

namespace {

using namespace std::chrono_literals;

constexpr auto look_every = 50ms;
constexpr auto look_at_the_end_every = 2ms;
constexpr auto answer_within = 2s;
constexpr auto rank_0_asks_within = 500ms;
constexpr double longest_pause_s =
    2;  // between two looks: a busy machine makes a thread wait, but not for that long

// The tags of the three messages.
constexpr int tag_alarm = 1, tag_question = 2, tag_answer = 3;

}  // namespace

Watchdog::Watchdog(FlightRecorder& recorder, double timeout_s)
    : recorder_(recorder),
      timeout_s_(timeout_s),
      exceptions_(std::uncaught_exceptions()),
      communicator_(Communicator::world())
{
  check(timeout_s > 0, "a watchdog that waits for no time");
  recorder_.set_finished(false);
  thread_ = std::thread([this] { run(); });
}

Watchdog::~Watchdog()
{
  const bool together = std::uncaught_exceptions() <= exceptions_;
  if (together) recorder_.set_finished(true);
  {
    const std::lock_guard lock(mutex_);
    end_ = together ? End::together : End::at_once;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::run()
{
  std::unique_lock lock(mutex_);
  while (end_ != End::at_once) {
    const End end = end_;
    lock.unlock();
    const bool goes_on = look_after(end);
    lock.lock();
    if (!goes_on) return;
    changed_.wait_for(lock, end == End::none ? look_every : look_at_the_end_every, [&] { return end_ != end; });
  }
}

/// What is to be done every time; false when all ranks have ended.
bool Watchdog::look_after(End end)
{
  notice_a_stop(Clock::now());
  receive_all();
  watch(Clock::now());
  std::erase_if(sent_, [](Sent& sent) {
    int done = 0;
    check_mpi(MPI_Test(&sent.request, &done, MPI_STATUS_IGNORE), "sending a message of the watchdog");
    return done != 0;
  });
  // Until all answers have gone out and come in, the others have to be there.
  if (end == End::none || asked_ || !sent_.empty()) return true;
  if (all_ended_ == MPI_REQUEST_NULL)
    check_mpi(MPI_Ibarrier(communicator_.handle(), &all_ended_), "waiting for all watchdogs");
  int done = 0;
  check_mpi(MPI_Test(&all_ended_, &done, MPI_STATUS_IGNORE), "waiting for all watchdogs");
  return done == 0;
}

/// Starts all clocks anew if this thread has not run for long, before it answers or asks anybody.
void Watchdog::notice_a_stop(Clock::time_point now)
{
  const std::chrono::duration<double> longest(std::min(timeout_s_ / 2, longest_pause_s));
  if (looked_ && now - *looked_ > longest) {
    recorder_.restart_clocks();
    alarm_.reset();
    asked_.reset();
  }
  looked_ = now;
}

void Watchdog::watch(Clock::time_point now)
{
  if (asked_) {
    const bool all = std::all_of(answers_.begin(), answers_.end(), [](const FlightRecord& r) { return r.answers; });
    if (all || now - *asked_ >= answer_within) conclude();
    return;
  }
  if (recorder_.longest_s() < timeout_s_) {
    alarm_.reset();
  } else if (communicator_.rank() == 0) {
    ask_all(now);
  } else if (!alarm_) {
    alarm_ = now;
    send(0, tag_alarm, "");
  } else if (now - *alarm_ >= answer_within + rank_0_asks_within) {
    ask_all(now);  // rank 0 would have ended the job by now
  }
}

void Watchdog::receive_all()
{
  while (true) {
    int there = 0;
    MPI_Status status;
    check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, communicator_.handle(), &there, &status),
              "looking for messages of watchdogs");
    if (there == 0) return;
    int bytes = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "asking for the size of a message");
    std::string text(static_cast<std::size_t>(bytes), '\0');
    check_mpi(MPI_Recv(text.data(), bytes, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, communicator_.handle(),
                       MPI_STATUS_IGNORE),
              "receiving a message of a watchdog");
    if (status.MPI_TAG == tag_question) send(status.MPI_SOURCE, tag_answer, to_text(recorder_.record()));
    if (status.MPI_TAG == tag_alarm && !asked_) ask_all(Clock::now());
    if (status.MPI_TAG == tag_answer && asked_)
      answers_[static_cast<std::size_t>(status.MPI_SOURCE)] = flight_record_from(text);
  }
}

void Watchdog::send(int rank, int tag, std::string text)
{
  Sent& sent = sent_.emplace_back(Sent{std::move(text)});
  check_mpi(MPI_Isend(sent.text.data(), static_cast<int>(sent.text.size()), MPI_BYTE, rank, tag,
                      communicator_.handle(), &sent.request),
            "sending a message of the watchdog");
}

void Watchdog::ask_all(Clock::time_point now)
{
  FlightRecord silent;
  silent.answers = false;
  answers_.assign(static_cast<std::size_t>(communicator_.ranks()), silent);
  for (int r = 0; r < communicator_.ranks(); ++r)
    if (r != communicator_.rank()) send(r, tag_question, "");
  answers_[static_cast<std::size_t>(communicator_.rank())] = recorder_.record();
  asked_ = now;
}

/// Ends the job, unless things have moved since the alarm.
void Watchdog::conclude()
{
  asked_.reset();
  const bool stuck = std::any_of(answers_.begin(), answers_.end(),
                                 [&](const FlightRecord& record) { return record.longest_s() >= timeout_s_; });
  if (stuck) abort_job({diagnose(answers_, timeout_s_), exit_watchdog});
  alarm_.reset();
}

}  // namespace rankwise
