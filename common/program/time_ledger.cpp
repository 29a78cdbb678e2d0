#include "common/program/time_ledger.hpp"

#include <algorithm>
#include <cstring>
#include <exception>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"
#include "common/cuda/devices.hpp"

namespace rankwise {

namespace {

// Spans nest within a thread, so each thread has its own innermost span.
thread_local TimeLedger::Span* innermost = nullptr;
thread_local std::string failed;
// Time at which this thread's latest span or piece began or ended.
thread_local EventTime latest;
TimeLedger::Span* const* const innermost_of_first_thread =
    &innermost;  // static objects are initialised by the first thread

TraceEvent event_of(std::string_view name, Work work, EventTime start, EventTime duration, SourceLocation where)
{
  return {std::string(name), work, start.wall_ns, duration.wall_ns, start.virtual_ps, duration.virtual_ps, where};
}

}  // namespace

std::string_view name_of(Work work)
{
  constexpr std::array<std::string_view, work_kinds> names = {"compute", "exposed",  "waiting", "io",
                                                              "hidden",  "fetching", "storing"};
  return names[static_cast<std::size_t>(work)];
}

TimeLedger::Span::Span(TimeLedger& ledger, Work work, std::string_view name, SourceLocation where)
    : ledger_(ledger),
      work_(work),
      name_length_(std::min(name.size(), name_.size() - 1)),
      where_(where),
      outer_(innermost),
      exceptions_(std::uncaught_exceptions())
{
  std::copy_n(name.begin(), name_length_, name_.begin());
  if (exceptions_ == 0) failed.clear();
  innermost = this;
  begin_gpu_range(name_.data());
  const std::scoped_lock lock(ledger_.mutex_);
  ledger_.open_.push_back(this);
  latest = start_ = event_time();
}

TimeLedger::Span::~Span()
{
  latest = event_time();
  const EventTime duration = latest - start_;
  end_gpu_range();
  innermost = outer_;
  // The time of this span does not count for the enclosing span of the same ledger.
  for (Span* outer = outer_; outer != nullptr; outer = outer->outer_) {
    if (&outer->ledger_ != &ledger_) continue;
    outer->inside_ns_ += duration.wall_ns;
    break;
  }
  const std::string_view name(name_.data(), name_length_);
  if (std::uncaught_exceptions() > exceptions_ && failed.empty()) failed = text();
  const std::scoped_lock lock(ledger_.mutex_);
  std::erase(ledger_.open_, this);
  ledger_.spent_ns_[static_cast<std::size_t>(work_)] += duration.wall_ns - inside_ns_;
  if (ledger_.recording_) ledger_.events_.push_back(event_of(name, work_, start_, duration, where_));
}

void TimeLedger::piece(std::string_view name, SourceLocation where)
{
  const EventTime begin = std::exchange(latest, event_time());
  const std::scoped_lock lock(mutex_);
  if (recording_) events_.push_back(event_of(name, Work::compute, begin, latest - begin, where));
}

std::pair<std::string_view, Work> TimeLedger::innermost_span()
{
  if (innermost == nullptr) return {"", Work::compute};
  return {{innermost->name_.data(), innermost->name_length_}, innermost->work_};
}

std::string TimeLedger::Span::text() const
{
  return fmt::format("{} ({})", std::string_view(name_.data(), name_length_), text_of(where_));
}

double TimeLedger::seconds(Work work) const
{
  const std::scoped_lock lock(mutex_);
  return 1e-9 * static_cast<double>(spent_ns_[static_cast<std::size_t>(work)]);
}

void TimeLedger::reset()
{
  const std::scoped_lock lock(mutex_);
  check(open_.empty(), "the time ledger was reset while a span was open");
  spent_ns_.fill(0);
}

std::string TimeLedger::open_span() const
{
  const std::scoped_lock lock(mutex_);
  return open_.empty() ? "" : open_.back()->text();
}

std::size_t TimeLedger::write_innermost_span(std::span<char> text)
{
  const Span* const own = innermost;
  const Span* const span = own != nullptr ? own : *innermost_of_first_thread;
  if (span == nullptr) return 0;
  // The first thread may be leaving its span at this moment, so only data inside the span itself is read.
  const std::string_view name(span->name_.data(), strnlen(span->name_.data(), span->name_.size()));
  const auto written = own != nullptr
                           ? fmt::format_to_n(text.data(), text.size(), "{} ({}:{})", name,
                                              short_file_name(span->where_.file_name()), span->where_.line())
                           : fmt::format_to_n(text.data(), text.size(), "{}", name);
  return std::min(written.size, text.size());
}

TimeLedger::TimeLedger(TimeLedger& beside) : main_(&beside)
{
  open_.reserve(16);
  const std::scoped_lock lock(beside.mutex_);
  recording_ = beside.recording_;
  beside.beside_.push_back(this);
}

TimeLedger::~TimeLedger()
{
  if (main_ == nullptr) return;
  const std::scoped_lock lock(main_->mutex_);
  std::erase(main_->beside_, this);
}

void TimeLedger::record()
{
  const std::scoped_lock lock(mutex_);
  recording_ = true;
  for (TimeLedger* const ledger : beside_) ledger->record();
}

std::vector<TraceEvent> TimeLedger::events() const
{
  const std::scoped_lock lock(mutex_);
  std::vector<TraceEvent> all = events_;
  for (const TimeLedger* const ledger : beside_) {
    const std::vector<TraceEvent> further = ledger->events();
    all.insert(all.end(), further.begin(), further.end());
  }
  return all;
}

std::string innermost_failed_span()
{
  return failed;
}

}  // namespace rankwise
