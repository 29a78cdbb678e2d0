#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "common/base/source_location.hpp"

/// @file
/// Errors: three kinds of exception, and the exit statuses.

namespace rankwise {

/// Exit statuses that every program shares.
enum ExitStatus : int {
  exit_success = 0,     ///< the run ended and all its checks passed
  exit_failure = 1,     ///< a check failed, or the run was aborted
  exit_user_error = 2,  ///< the user asked for something impossible; detected before the first message
  exit_watchdog = 86,   ///< deadlock: the watchdog ended the job
};

/// The user asked for something that cannot be done. Rank 0 prints the message once; all ranks exit with status 2.
class UserError : public std::runtime_error {
 public:
  /// @param asked   the request and why it cannot be met, one sentence.
  /// @param remedy  the rule that it violates and what to do instead; may have several lines.
  UserError(const std::string& asked, const std::string& remedy);
};

/// A check failed at run time. It ends the whole job with status 1 and a message with rank, file and line.
class Error : public std::runtime_error {
 public:
  /// @param message  describes the operation and how it failed.
  /// @param where    the source line that detected it.
  explicit Error(const std::string& message, SourceLocation where = SourceLocation::current());

  /// The source line that detected it.
  const SourceLocation& where() const { return where_; }

 private:
  SourceLocation where_;
};

/// The body of an exercise that has not been written yet.
class NotImplemented : public Error {
 public:
  /// Same parameters as Error.
  explicit NotImplemented(const std::string& message, SourceLocation where = SourceLocation::current())
      : Error(message, where)
  {
  }
};

/// Throws Error unless @p holds.
/// @param holds    the condition that must be true.
/// @param message  describes the failure.
/// @param where    the line of the caller.
void check(bool holds, std::string_view message, SourceLocation where = SourceLocation::current());

/// Body of an exercise's stub: always throws NotImplemented.
/// @param exercise  the number of the exercise, as "01.1".
/// @param task      the code to write, in words.
/// @param where     the line of the stub.
[[noreturn]] void not_implemented(std::string_view exercise, std::string_view task,
                                  SourceLocation where = SourceLocation::current());

}  // namespace rankwise
