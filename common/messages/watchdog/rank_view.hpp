#pragma once

#include <string>
#include <vector>

#include "common/messages/watchdog/wait_records.hpp"

/// @file
/// Picture of what the ranks do at this moment, drawn in place on a terminal (`--watch`).

namespace rankwise {

/// A few lines that are drawn again and again in the same place, below the line of the cursor, which ends where it was. So other
/// output begins on a line of its own, and a job that dies at any moment leaves a terminal that works.
class RankView {
 public:
  /// The next picture, as text for a terminal: a line for each of the first ranks with what it did at the last moments, the
  /// oldest first, and what it does now.
  /// @param records  one for each rank.
  std::string draw(const Records& records);

 private:
  std::vector<std::string> past_;  // for each rank, a letter for each moment
};

}  // namespace rankwise
