#pragma once

#include <cstdint>

/// @file
/// What a process says of itself while it works, for the watchdog: what it has finished, and where it is.

namespace rankwise {

/// Something has been finished that shows that this process gets on: a kernel call, a block of a file, a message.
/// @cost  one addition to an atomic number.
void note_progress() noexcept;

/// The time that a thread spends in one kernel: `const Working working;`. However long that is, the process works. The end
/// of the scope is progress.
class Working {
 public:
  Working() noexcept;
  ~Working();
  Working(const Working&) = delete;
  Working& operator=(const Working&) = delete;
};

/// What this process does from here to the end of the scope, where no message tells: `const Phase phase("has its turn");`
class Phase {
 public:
  /// @param text  a literal that continues "rank 1 ", for the whole process; the text of an outer scope comes back at
  ///              the end of this one.
  explicit Phase(const char* text) noexcept;
  ~Phase();
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

  /// The text of the innermost scope; empty without any. Any thread may ask.
  static const char* current() noexcept;

 private:
  const char* outer_;
};

/// What this process has done so far.
struct Activity {
  std::uint64_t finished = 0;  ///< how often something was finished
  int working = 0;             ///< threads that are in a kernel now
};

/// That of this moment. Any thread may ask.
Activity current_activity() noexcept;

}  // namespace rankwise
