#pragma once

#include <cstdint>
#include <string>

/// @file
/// Progress of a long task, shown on a terminal.

namespace rankwise {

/// A bar on standard error: "[##......] 12 of 50 MB, note", no longer than the terminal's line. Draws nothing unless
/// standard error reaches a drawing terminal (terminal.hpp).
class ProgressBar {
 public:
  /// @param unit  unit of the numbers, as "MB"; may be empty.
  explicit ProgressBar(std::string unit = "");

  /// Draws the bar and a note, replacing the previous one.
  void show(std::int64_t done, std::int64_t total, const std::string& note = "");
  /// Clears the bar's line for other output.
  void clear();

 private:
  std::string unit_;
  bool terminal_;
  bool shown_ = false;
};

}  // namespace rankwise
