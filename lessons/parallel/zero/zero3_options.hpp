#pragma once

#include "lessons/parallel/zero/fsdp_units.hpp"
#include "lessons/parallel/zero/zero_stages.hpp"

/// @file
/// The options of ZeRO-3.

namespace rankwise {

/// Options of ZeRO-3: which parameters are gathered together, and when.
struct Zero3Options : LessonOptions {
  static constexpr Stage stage = Stage::zero3;  ///< this lesson
  GatherOptions gathering;                      ///< FSDP units
};

/// Data parallelism. All ranks make the same number of micro-batches.
inline Division divide(const Zero3Options& options, RankOf rank)
{
  return divide_with_padding(options, rank);
}

/// Declares them.
inline void declare(OptionTable& table, Zero3Options& options)
{
  declare(table, static_cast<LessonOptions&>(options));
  declare(table, options.gathering);
  declare_elastic(table, options, true);
}

/// Refuses gather options that are out of range.
inline void check_lesson(const Zero3Options& options, int)
{
  check_gathers(options.gathering, uses_of(options, true));
}

}  // namespace rankwise
