#pragma once

#include <cstdint>

/// @file
/// Lines of source, as messages name them.

namespace rankwise {

/// Where a call stands. It does what std::source_location does, which clang 14 does not offer with this library.
class SourceLocation {
 public:
  /// Used as a default argument, the line of the outermost caller.
  static constexpr SourceLocation current(const char* file = __builtin_FILE(),
                                          std::uint32_t line = __builtin_LINE())
  {
    return {file, line};
  }
  /// As the compiler was given it.
  constexpr const char* file_name() const { return file_; }
  /// From 1.
  constexpr std::uint32_t line() const { return line_; }

 private:
  constexpr SourceLocation(const char* file, std::uint32_t line) : file_(file), line_(line) {}

  const char* file_;
  std::uint32_t line_;
};

}  // namespace rankwise
