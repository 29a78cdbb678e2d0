#pragma once

#include "lessons/06_zero3/fsdp_units.hpp"
#include "lessons/frame/options.hpp"

/// @file
/// The options of lesson 06.

namespace rankwise {

/// Options of ZeRO-3: which parameters are gathered together, and when.
struct Zero3Options : LessonOptions {
  GatherOptions gathering;  ///< FSDP units
};

/// Declares them.
void declare(OptionTable& table, Zero3Options& options);
/// Refuses gather options that are out of range.
void check_lesson(const Zero3Options& options, int N);

}  // namespace rankwise
