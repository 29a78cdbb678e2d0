#pragma once

#include <memory>

#include "gpt2/kernels/kernels.hpp"

/// @file
/// Kernels of any family that say when they are at work, for the watchdog.

namespace rankwise {

/// The same kernels; each call of one counts as work while it lasts, and as progress when it returns (common/base/activity.hpp).
std::unique_ptr<Kernels> watched(std::unique_ptr<Kernels> kernels);

}  // namespace rankwise
