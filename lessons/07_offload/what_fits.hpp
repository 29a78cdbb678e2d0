#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "gpt2/training_options.hpp"
#include "lessons/06_zero3/units.hpp"
#include "lessons/07_offload/offload.hpp"

/// @file
/// Which options let a run fit on a device that is too small for it.

namespace rankwise {

/// What would make a run fit that has no room on the device, as a sentence: what of it leaves, and what is there at a time.
/// @param[in,out] training, gathering, offload  as asked for; changed one after the other until the run fits.
/// @param needs  bytes of the device with these options as they are now.
/// @param room   bytes that it has.
std::string what_fits(TrainingOptions& training, GatherOptions& gathering, OffloadOptions& offload,
                      const std::function<std::int64_t()>& needs, std::int64_t room);

}  // namespace rankwise
