#pragma once

#include <memory>

#include "lessons/06_zero3/options.hpp"
#include "lessons/07_offload/capacity.hpp"
#include "lessons/07_offload/offload.hpp"

/// @file
/// The options of lesson 07.

namespace rankwise {

/// Options of offloading: those of ZeRO-3, and the tier of each state.
struct ZeroOffloadOptions : Zero3Options {
  OffloadOptions offload;  ///< what leaves the device, and to which tier
  mutable std::shared_ptr<Descriptor>
      directory;  ///< set by prepare() if there is a disk; lives until the program ends
};

/// Declares them.
void declare(OptionTable& table, ZeroOffloadOptions& options);
/// Refuses a tier that does not exist and gather options that are out of range.
void check_lesson(const ZeroOffloadOptions& options, int N);
/// Refuses a run that does not fit on the host or the disk, and locks the directory for this job.
/// @throws UserError.
void prepare(const ZeroOffloadOptions& options, RankOf rank);

}  // namespace rankwise
