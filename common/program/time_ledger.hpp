#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/source_location.hpp"

/// @file
/// The time ledger: adds up spans of work by kind, and records them as events for a trace.

namespace rankwise {

/// Kinds of work.
enum class Work {
  compute,   ///< arithmetic
  exposed,   ///< communication that is not overlapped
  waiting,   ///< for another rank, or for another thread of this one
  io,        ///< files
  hidden,    ///< overlapped communication, on its own thread
  fetching,  ///< copies from another memory tier, on their own thread
  storing,   ///< copies to another memory tier, on their own thread
};
inline constexpr int work_kinds = 7;  ///< number of kinds of Work

/// "compute", "exposed", "waiting", "io", "hidden", "fetching" or "storing".
std::string_view name_of(Work work);

/// One span as a trace shows it.
struct TraceEvent {
  std::string name;          ///< name of the work
  Work work;                 ///< kind of work
  std::int64_t start_ns;     ///< time of event_clock_ns(), comparable between machines
  std::int64_t duration_ns;  ///< duration, nested spans included
  std::int64_t start_ps;     ///< the same two on the virtual clock; 0 without one
  std::int64_t duration_ps;  ///< >= 0
  SourceLocation where;      ///< line that did it
};

/// Adds up this rank's time by kind of work.
///
/// Spans nest, and time counts for the innermost span only, so the kinds add up to the time spent in outermost
/// spans. Any thread may open spans (they nest within a thread); the time of concurrent threads is added. A thread
/// whose work is overlapped with another thread's has a ledger of its own, attached to the other's. GPU profilers
/// show the same spans (NVTX).
class TimeLedger {
 public:
  /// An empty ledger that does not record events.
  TimeLedger() { open_.reserve(16); }
  /// The ledger of a concurrent thread, attached to another ledger, whose record() and events() include it.
  /// @param beside  the ledger to which it is attached; outlives this one.
  explicit TimeLedger(TimeLedger& beside);
  ~TimeLedger();
  TimeLedger(const TimeLedger&) = delete;
  TimeLedger& operator=(const TimeLedger&) = delete;

  /// A piece of work, from the call of TimeLedger::span() to the end of its scope.
  class Span {
   public:
    /// Ends the span. innermost_failed_span() returns it if an exception ended it.
    ~Span();
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    friend class TimeLedger;
    Span(TimeLedger& ledger, Work work, std::string_view name, SourceLocation where);
    std::string text() const;  // name and line

    TimeLedger& ledger_;
    Work work_;
    std::array<char, 49> name_{};  // a copy without allocation, zero-terminated; longer names are truncated
    std::size_t name_length_;
    SourceLocation where_;
    Span* outer_;  // enclosing span of this thread
    EventTime start_;
    std::int64_t inside_ns_ = 0;  // time in nested spans
    int exceptions_;              // in flight when the span began
  };

  /// Begins a span of this ledger, which outlives it; it ends with the scope of the object returned:
  /// `const auto span = time.span(Work::io, "reading");`
  /// @param work   the kind of work.
  /// @param name   description that completes "while ..."; truncated to 48 letters. No memory is allocated for it
  ///               unless record() was called.
  /// @param where  the line of the caller.
  [[nodiscard]] Span span(Work work, std::string_view name, SourceLocation where = SourceLocation::current()) &
  {
    return Span(*this, work, name, where);
  }

  /// Records a finished piece of arithmetic as an event: what this thread has done since its latest event or span
  /// began or ended. Nothing is recorded, nor counted as time, unless record() was called.
  void piece(std::string_view name, SourceLocation where = SourceLocation::current());

  /// Seconds spent so far in closed spans of this kind, without nested spans.
  double seconds(Work work) const;
  /// Resets all times to zero; events are kept. Error if a span is open.
  void reset();

  /// The most recently opened span that is still open, as "reading the tokens (data/corpus.cpp:12)"; empty if none.
  std::string open_span() const;

  /// Writes the calling thread's innermost open span of any ledger, in the format of open_span(). A thread without
  /// spans is assumed to work for the process's first thread, whose span is written without its line. Allocates no
  /// memory and takes no lock, for use in signal handlers.
  /// @return  number of characters written to @p text; 0 if no span is open.
  static std::size_t write_innermost_span(std::span<char> text);

  /// Name and kind of the calling thread's innermost open span of any ledger; "" and compute if none is open.
  static std::pair<std::string_view, Work> innermost_span();

  /// Starts recording spans as events for a trace, including those of attached ledgers.
  void record();
  /// Events recorded so far, in the order in which the spans ended, followed by those of each attached ledger.
  std::vector<TraceEvent> events() const;

 private:
  mutable std::mutex mutex_;
  std::array<std::int64_t, work_kinds> spent_ns_{};
  std::vector<const Span*> open_;  // in the order in which they began; capacity reserved at construction
  bool recording_ = false;
  std::vector<TraceEvent> events_;
  TimeLedger* const main_ = nullptr;   // the ledger to which this one is attached
  std::vector<TimeLedger*> beside_{};  // ledgers attached to this one
};

/// The innermost span of this thread that an exception has left, as "reading the tokens (data/corpus.cpp:12)";
/// empty if none, or if another span has begun since.
std::string innermost_failed_span();

}  // namespace rankwise
