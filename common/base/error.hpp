#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "common/base/source_location.hpp"

/// @file
/// How Rankwise says that something went wrong: three kinds of failure, and the exit statuses.

namespace rankwise {

/// Exit statuses that every program shares.
enum ExitStatus : int {
  exit_success = 0,     ///< the run ended and all its checks hold
  exit_failure = 1,     ///< a check failed, or the run broke
  exit_user_error = 2,  ///< the user asked for something impossible; found before the first message
  exit_watchdog = 86,   ///< the ranks waited for each other in vain
};

/// Something the user asked for that cannot be done. Rank 0 prints it once, all ranks end with status 2.
class UserError : public std::runtime_error {
 public:
  /// @param asked   what was asked and why it cannot be, one sentence.
  /// @param remedy  the rule behind it and what to do; may hold several lines.
  UserError(const std::string& asked, const std::string& remedy);
};

/// A check that failed while the program ran. It ends the whole job with rank, file and line, status 1.
class Error : public std::runtime_error {
 public:
  /// @param message  what was being done and what came out instead.
  /// @param where    the line that noticed.
  explicit Error(const std::string& message, SourceLocation where = SourceLocation::current());

  /// The line that noticed.
  const SourceLocation& where() const { return where_; }

 private:
  SourceLocation where_;
};

/// The body of an exercise that has not been written yet.
class NotImplemented : public Error {
 public:
  /// As for Error.
  explicit NotImplemented(const std::string& message, SourceLocation where = SourceLocation::current())
      : Error(message, where)
  {
  }
};

/// Throws Error unless @p holds.
/// @param holds    the condition that must be true.
/// @param message  what is wrong when it is not.
/// @param where    the line of the caller.
void check(bool holds, std::string_view message, SourceLocation where = SourceLocation::current());

/// Ends an exercise's stub: always throws NotImplemented.
/// @param exercise  the number of the exercise, as "01.1".
/// @param task      what to write.
/// @param where     the line of the stub.
[[noreturn]] void not_implemented(std::string_view exercise, std::string_view task,
                                  SourceLocation where = SourceLocation::current());

}  // namespace rankwise
