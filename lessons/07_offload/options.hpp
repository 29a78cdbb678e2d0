#pragma once

#include <memory>

#include "lessons/06_zero3/options.hpp"
#include "lessons/07_offload/offload.hpp"
#include "lessons/07_offload/offload_directory.hpp"

/// @file
/// The options of lesson 07.

namespace rankwise {

/// Options of offloading: those of ZeRO-3, and what lies where.
struct ZeroOffloadOptions : Zero3Options {
  OffloadOptions offload;  ///< what leaves the device, and where to
  mutable std::shared_ptr<OffloadDirectory>
      directory;  ///< of prepare(), until the program ends; none without a disk
};

/// Declares them.
void declare(OptionTable& table, ZeroOffloadOptions& options);
/// Refuses what is no tier, and what cannot be gathered.
void check_lesson(const ZeroOffloadOptions& options, int N);
/// Refuses what host or disk have no room for, and claims the directory for this job.
/// @throws UserError.
void prepare(const ZeroOffloadOptions& options, RankOf rank);

}  // namespace rankwise
