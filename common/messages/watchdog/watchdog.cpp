#include "common/messages/watchdog/watchdog.hpp"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>

#include "common/base/activity.hpp"
#include "common/base/error.hpp"
#include "common/base/text.hpp"
#include "common/messages/watchdog/diagnosis.hpp"
#include "common/messages/watchdog/mpi_calls.hpp"
#include "common/program/code_places.hpp"
#include "common/program/rank_failure.hpp"
#include "common/program/terminal.hpp"

namespace rankwise {

namespace {

using namespace std::chrono_literals;

constexpr auto look_every = 50ms;
constexpr auto look_at_the_end_every = 2ms;
constexpr auto answer_within = 2s;
constexpr auto draw_every = 200ms;
constexpr auto rank_0_asks_within = 500ms;
constexpr double longest_pause_s = 2;  // between two checks: longer than a busy machine delays a thread

// The tags of its messages; the last two are about ranks that are shown.
constexpr int tag_alarm = 1, tag_question = 2, tag_answer = 3, tag_look = 4, tag_seen = 5;

/// The watchdog of the job.
Watchdog* of_this_job = nullptr;

/// Replaces code offsets of MPI calls by function names and lines.
void name_places(std::vector<FlightRecord>& records)
{
  std::vector<std::uint64_t> places;
  for (const FlightRecord& record : records)
    for (const MpiCallRecord& call : record.mpi_calls) places.push_back(call.code);
  const std::vector<std::string> names = names_of_places(places);
  auto name = names.begin();
  for (FlightRecord& record : records)
    for (MpiCallRecord& call : record.mpi_calls) call.where = *name++;
}

}  // namespace

Watchdog::Watchdog(FlightRecorder& recorder, double timeout_s)
    : recorder_(recorder),
      timeout_s_(timeout_s),
      exceptions_(std::uncaught_exceptions()),
      communicator_(Communicator::world())
{
  recorder_.set_finished(false);
  thread_ = std::thread([this] { run(); });
  of_this_job = this;
}

Watchdog::~Watchdog()
{
  of_this_job = nullptr;
  if (!thread_.joinable()) return;
  if (std::uncaught_exceptions() > exceptions_)
    end(End::at_once);
  else
    end_together();
}

void Watchdog::end_together()
{
  recorder_.set_finished(true);
  end(End::together);
}

void Watchdog::restart()
{
  end(End::at_once);
  for (Sent& sent : sent_) wait_for_failure({&sent.request, 1});
  sent_.clear();
  wait_for_failure({&all_ended_, 1});
  alarm_.reset();
  asked_.reset();
  seen_.clear();
  looking_.clear();
  end_ = End::none;
  communicator_ = Communicator::world();
  thread_ = std::thread([this] { run(); });
}

ShownRanks::ShownRanks(bool shown) : shown_(shown && of_this_job != nullptr)
{
  if (shown_) of_this_job->show(true);
}

ShownRanks::~ShownRanks()
{
  if (shown_) of_this_job->show(false);
}

void watch_survivors()
{
  flight_recorder().forget();
  if (of_this_job != nullptr) of_this_job->restart();
}

void Watchdog::end(End how)
{
  {
    const std::lock_guard lock(mutex_);
    end_ = how;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::run()
{
  const OwnMpiCalls own;
  std::unique_lock lock(mutex_);
  while (end_ != End::at_once) {
    const End end = end_;
    lock.unlock();
    bool goes_on = false;
    try {
      goes_on = look_after(end);
    } catch (const RankFailure&) {
      goes_on = false;  // until restart()
    }
    lock.lock();
    if (!goes_on) return;
    changed_.wait_for(lock, end == End::none ? look_every : look_at_the_end_every, [&] { return end_ != end; });
  }
}

/// One check; false when all ranks have ended.
bool Watchdog::look_after(End end)
{
  notice_a_stop(Clock::now());
  notice_activity(Clock::now());
  receive_all();
  look(Clock::now());
  watch(Clock::now());
  std::erase_if(sent_, [](Sent& sent) {
    int done = 0;
    check_mpi(MPI_Test(&sent.request, &done, MPI_STATUS_IGNORE), "sending a message of the watchdog");
    return done != 0;
  });
  // The other ranks must not leave before all answers have been sent and received.
  const bool looks =
      std::any_of(looking_.begin(), looking_.end(), [](const auto& asked) { return asked.has_value(); });
  if (end == End::none || asked_ || looks || !sent_.empty()) return true;
  if (all_ended_ == MPI_REQUEST_NULL)
    check_mpi(MPI_Ibarrier(communicator_.handle(), &all_ended_), "waiting for all watchdogs");
  int done = 0;
  check_mpi(MPI_Test(&all_ended_, &done, MPI_STATUS_IGNORE), "waiting for all watchdogs");
  return done == 0;
}

/// Restarts all clocks if this thread has not run for long, before it answers or asks any rank.
void Watchdog::notice_a_stop(Clock::time_point now)
{
  const double timeout_s = timeout_s_;
  const std::chrono::duration<double> longest(timeout_s > 0 ? std::min(timeout_s / 2, longest_pause_s)
                                                            : longest_pause_s);
  if (looked_ && now - *looked_ > longest) {
    recorder_.restart_clocks();
    got_on_ = now;
    alarm_.reset();
    asked_.reset();
  }
  looked_ = now;
}

void Watchdog::notice_activity(Clock::time_point now)
{
  const Activity activity = current_activity();
  if (activity.working > 0 || activity.finished != finished_) got_on_ = now;
  finished_ = activity.finished;
}

/// Seconds without progress of this rank.
double Watchdog::idle_s(Clock::time_point now) const
{
  return std::chrono::duration<double>(now - got_on_).count();
}

FlightRecord Watchdog::record(Clock::time_point now) const
{
  FlightRecord record = recorder_.record();
  record.working = current_activity().working > 0;
  record.idle_s = idle_s(now);
  return record;
}

void Watchdog::watch(Clock::time_point now)
{
  if (asked_) {
    const bool all = std::all_of(answers_.begin(), answers_.end(), [](const FlightRecord& r) { return r.answers; });
    if (all || now - *asked_ >= answer_within) conclude(now);
    return;
  }
  const double timeout_s = timeout_s_;
  if (timeout_s == 0 || idle_s(now) < timeout_s) {
    alarm_.reset();
  } else if (now < quiet_until_) {
    return;
  } else if (communicator_.rank() == 0) {
    ask_all(now, timeout_s);
  } else if (!alarm_) {
    alarm_ = now;
    send(0, tag_alarm, std::to_string(timeout_s));
  } else if (now - *alarm_ >= answer_within + rank_0_asks_within) {
    ask_all(now, timeout_s);  // rank 0 is silent: it would have ended the job by now
  }
}

/// This rank's alarm was answered, and others made progress. The last rank to make progress raises its own alarm.
void Watchdog::keep_quiet(Clock::time_point now)
{
  if (idle_s(now) < timeout_s_) return;
  alarm_.reset();
  quiet_until_ = now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s_));
}

void Watchdog::receive_all()
{
  while (true) {
    int there = 0;
    MPI_Status status;
    check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, communicator_.handle(), &there, &status),
              "probing for messages of watchdogs");
    if (there == 0) return;
    int bytes = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &bytes), "asking for the size of a message");
    std::string text(static_cast<std::size_t>(bytes), '\0');
    check_mpi(MPI_Recv(text.data(), bytes, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, communicator_.handle(),
                       MPI_STATUS_IGNORE),
              "receiving a message of a watchdog");
    const Clock::time_point now = Clock::now();
    if (status.MPI_TAG == tag_question) {
      send(status.MPI_SOURCE, tag_answer, to_text(record(now)));
      if (alarm_) keep_quiet(now);
    }
    if (status.MPI_TAG == tag_look) send(status.MPI_SOURCE, tag_seen, to_text(record(now)));
    if (status.MPI_TAG == tag_alarm && !asked_) ask_all(now, std::stod(text));
    const auto source = static_cast<std::size_t>(status.MPI_SOURCE);
    if (status.MPI_TAG == tag_answer && asked_) answers_[source] = flight_record_from(text);
    if (status.MPI_TAG != tag_seen || source >= seen_.size()) continue;
    seen_[source] = flight_record_from(text);
    looking_[source].reset();
  }
}

void Watchdog::send(int rank, int tag, std::string text)
{
  Sent& sent = sent_.emplace_back(Sent{std::move(text)});
  check_mpi(MPI_Isend(sent.text.data(), static_cast<int>(sent.text.size()), MPI_BYTE, rank, tag,
                      communicator_.handle(), &sent.request),
            "sending a message of the watchdog");
}

void Watchdog::show(bool shown)
{
  const std::lock_guard lock(drawing_);
  shown_ = shown;
  if (shown) drawn_below_cursor = true;
  if (shown || communicator_.rank() != 0) return;
  draw_text(stderr, clear_picture);
}

/// Draws the latest records, and asks for new ones.
void Watchdog::look(Clock::time_point now)
{
  const std::lock_guard lock(drawing_);
  if (!shown_ || communicator_.rank() != 0 || now < next_look_) return;
  next_look_ = now + draw_every;
  const auto ranks = static_cast<std::size_t>(communicator_.ranks());
  const bool first = seen_.empty();
  seen_.resize(ranks);
  looking_.resize(ranks);
  seen_[0] = record(now);
  for (std::size_t r = 1; r < ranks; ++r) {
    if (first || (looking_[r] && now - *looking_[r] >= answer_within)) seen_[r].answers = false;
    if (looking_[r]) continue;
    looking_[r] = now;
    send(static_cast<int>(r), tag_look, "");
  }
  if (first || !drawn_below_cursor) return;
  draw_text(stderr, view_.draw(seen_));
}

void Watchdog::ask_all(Clock::time_point now, double timeout_s)
{
  FlightRecord silent;
  silent.answers = false;
  answers_.assign(static_cast<std::size_t>(communicator_.ranks()), silent);
  for (int r = 0; r < communicator_.ranks(); ++r)
    if (r != communicator_.rank()) send(r, tag_question, "");
  answers_[static_cast<std::size_t>(communicator_.rank())] = record(now);
  asked_ = now;
  asked_timeout_s_ = timeout_s;
}

/// Ends the job, unless a rank has made progress.
void Watchdog::conclude(Clock::time_point now)
{
  asked_.reset();
  const bool stuck = std::all_of(answers_.begin(), answers_.end(), [&](const FlightRecord& record) {
    return !record.answers || record.idle_s >= asked_timeout_s_;
  });
  if (!stuck) return keep_quiet(now);
  name_places(answers_);
  abort_job({diagnose(answers_, asked_timeout_s_), exit_watchdog});
}

}  // namespace rankwise
