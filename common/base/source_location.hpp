#pragma once

#include <cstdint>
#include <string_view>

/// @file
/// Source file and line, as messages print them.

namespace rankwise {

/// File and line of a call: a replacement for std::source_location, which clang 14 lacks here.
class SourceLocation {
 public:
  /// File and line of the caller, if called as a default argument.
  static constexpr SourceLocation current(const char* file = __builtin_FILE(),
                                          std::uint32_t line = __builtin_LINE())
  {
    return {file, line};
  }
  /// The file's path as passed to the compiler.
  constexpr const char* file_name() const { return file_; }
  /// The line, counted from 1.
  constexpr std::uint32_t line() const { return line_; }

 private:
  constexpr SourceLocation(const char* file, std::uint32_t line) : file_(file), line_(line) {}

  const char* file_;
  std::uint32_t line_;
};

/// A source file's path relative to the root of the source tree: "common/base/source_location.hpp".
constexpr std::string_view short_file_name(std::string_view path)
{
  // The root is what precedes the relative path of this file.
  constexpr std::string_view here = __FILE__;
  constexpr std::string_view root =
      here.substr(0, here.size() - std::string_view("common/base/source_location.hpp").size());
  return path.starts_with(root) ? path.substr(root.size()) : path;
}

}  // namespace rankwise
