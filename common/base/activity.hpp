#pragma once

#include <cstdint>

/// @file
/// Signs of progress for the watchdog: how much this process has finished, and what it is doing.

namespace rankwise {

/// Records that this process made progress: it finished a kernel call, a block of a file or a message.
/// @cost  one atomic increment.
void note_progress() noexcept;

/// Marks a thread as busy in one kernel until the end of the scope: `const Working working;`. The watchdog never
/// counts that time as idle, however long it is; the end of the scope counts as progress.
class Working {
 public:
  Working() noexcept;
  ~Working();
  Working(const Working&) = delete;
  Working& operator=(const Working&) = delete;
};

/// Describes what this process does until the end of the scope, where no message shows it:
/// `const Phase phase("has its turn");`
class Phase {
 public:
  /// @param text  a literal that continues the sentence "rank 1 ...". It holds for the whole process; at the end of
  ///              the scope the text of the enclosing scope is restored.
  explicit Phase(const char* text) noexcept;
  ~Phase();
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

  /// The text of the innermost scope; empty outside of any. Thread-safe.
  static const char* current() noexcept;

 private:
  const char* outer_;
};

/// Progress of this process so far.
struct Activity {
  std::uint64_t finished = 0;  ///< number of pieces of work finished
  int working = 0;             ///< threads that are now in a kernel
};

/// The progress so far. Thread-safe.
Activity current_activity() noexcept;

}  // namespace rankwise
