#pragma once

#include <cstdint>
#include <string_view>

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

/// A source file's name as seen from the root of the source tree: "common/base/source_location.hpp".
constexpr std::string_view short_file_name(std::string_view path)
{
  // The root is what stands in front of this very file.
  constexpr std::string_view here = __FILE__;
  constexpr std::string_view root =
      here.substr(0, here.size() - std::string_view("common/base/source_location.hpp").size());
  return path.starts_with(root) ? path.substr(root.size()) : path;
}

}  // namespace rankwise
