#pragma once

#include <memory>

#include "gpt2/kernels/kernels.hpp"

/// @file
/// A wrapper around kernels that reports their activity to the watchdog.

namespace rankwise {

/// Wraps @p kernels: each call counts as work while it lasts, and as progress when it returns
/// (common/base/activity.hpp).
std::unique_ptr<Kernels> watched(std::unique_ptr<Kernels> kernels);

}  // namespace rankwise
