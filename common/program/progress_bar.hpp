#pragma once

#include <cstdint>
#include <string>

/// @file
/// How far a long task has come, for whoever waits at a terminal.

namespace rankwise {

/// A bar on standard error: "[##......] 12 of 50 MB". It draws nothing unless that is a terminal.
class ProgressBar {
 public:
  /// @param unit  what is counted, as "MB"; empty: nothing but the numbers.
  explicit ProgressBar(std::string unit = "");

  /// Draws the bar, in place of the one before.
  void show(std::int64_t done, std::int64_t total);
  /// Clears the line that the bar stands in, so that other output may take its place.
  void clear();

 private:
  std::string unit_;
  bool terminal_;
  bool shown_ = false;
};

}  // namespace rankwise
