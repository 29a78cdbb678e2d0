#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/source_location.hpp"

/// @file
/// Where the time goes: spans of work by kind, added up, and kept as events when a trace is wanted.

namespace rankwise {

/// The kinds of work that time is spent on.
enum class Work {
  compute,   ///< arithmetic
  exposed,   ///< communication that nothing else hides
  waiting,   ///< for another rank, or for another thread of this one
  io,        ///< files
  hidden,    ///< communication on a thread of its own, beside the others
  fetching,  ///< what comes from another memory, on a thread of its own
  storing,   ///< what goes to another memory, on a thread of its own
};
inline constexpr int work_kinds = 7;  ///< how many kinds of Work there are

/// "compute", "exposed", "waiting", "io", "hidden", "fetching" or "storing".
std::string_view name_of(Work work);

/// One span as a trace shows it.
struct TraceEvent {
  std::string name;          ///< what was done
  Work work;                 ///< what kind of work
  std::int64_t start_ns;     ///< of event_clock_ns(), so that ranks on different machines can be shown together
  std::int64_t duration_ns;  ///< with the spans inside it
};

/// Adds up the time that this rank spends, by kind of work.
///
/// Spans nest; time counts for the innermost only, so the kinds add up to the time spent in outermost spans. Any thread
/// may open spans (they nest within a thread); two threads that work at the same time both count. A thread whose time
/// is hidden behind another's keeps its own ledger beside that one's. Tools that show what
/// a GPU does see the same spans (NVTX).
class TimeLedger {
 public:
  /// Nothing spent so far, nothing recorded.
  TimeLedger() { open_.reserve(16); }
  /// The ledger of a thread that works beside another: it is recorded with that one's, and its events are among that one's.
  /// @param beside  outlives this ledger.
  explicit TimeLedger(TimeLedger& beside);
  ~TimeLedger();
  TimeLedger(const TimeLedger&) = delete;
  TimeLedger& operator=(const TimeLedger&) = delete;

  /// A piece of work, from the call of TimeLedger::span() to the end of its scope.
  class Span {
   public:
    /// Ends the span; one that an exception leaves is remembered for innermost_failed_span().
    ~Span();
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    friend class TimeLedger;
    Span(TimeLedger& ledger, Work work, std::string_view name, SourceLocation where);
    std::string text() const;  // name and line

    TimeLedger& ledger_;
    Work work_;
    std::array<char, 49> name_{};  // a copy without allocation, ended by a zero; longer names are cut
    std::size_t name_length_;
    SourceLocation where_;
    Span* outer_;  // the span of this thread around this one
    std::int64_t start_ns_;
    std::int64_t inside_ns_ = 0;  // spent in spans inside this one
    int exceptions_;              // that were on their way when the span began
  };

  /// Begins a span of this ledger, which outlives it; it ends with the scope of the object returned:
  /// `const auto span = time.span(Work::io, "reading");`
  /// @param work   the kind of work.
  /// @param name   what is done, as in "while ..."; the first 48 letters are kept. No memory is allocated for it
  ///               unless record() was called.
  /// @param where  the line of the caller.
  [[nodiscard]] Span span(Work work, std::string_view name, SourceLocation where = SourceLocation::current()) &
  {
    return Span(*this, work, name, where);
  }

  /// Seconds spent so far in closed spans of this kind, without the spans inside them.
  double seconds(Work work) const;
  /// Seconds spent so far in closed spans of all kinds.
  double total_seconds() const;
  /// Starts all kinds from zero again; events stay. No span is open at that moment, or Error.
  void reset();

  /// The span that began last of those that are open, as "reading the tokens (data/corpus.cpp:12)"; empty without any.
  std::string open_span() const;

  /// Writes what the calling thread is doing, its innermost open span of any ledger, as open_span() puts it. A thread
  /// without spans works for the process's first thread, and that one's span is named, without its line. No memory is
  /// allocated and no lock taken: it is for signal handlers.
  /// @return  the characters written to @p text, 0 when no span is open.
  static std::size_t write_innermost_span(std::span<char> text);

  /// From now on spans are kept as events, for a trace; those of ledgers beside this one too.
  void record();
  /// The events kept so far, in the order in which the spans ended; then those of each ledger beside this one.
  std::vector<TraceEvent> events() const;

 private:
  mutable std::mutex mutex_;
  std::array<std::int64_t, work_kinds> spent_ns_{};
  std::vector<const Span*> open_;  // in the order in which they began; long enough from the start
  bool recording_ = false;
  std::vector<TraceEvent> events_;
  TimeLedger* const main_ = nullptr;   // the one that this is beside
  std::vector<TimeLedger*> beside_{};  // that are beside this one
};

/// What this thread was doing when an exception left it: the innermost span that was left, as "reading the tokens
/// (data/corpus.cpp:12)"; empty if there was none, or if another span began since.
std::string innermost_failed_span();

}  // namespace rankwise
