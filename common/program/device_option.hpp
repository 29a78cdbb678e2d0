#pragma once

#include "common/memory/device.hpp"
#include "common/program/options.hpp"

/// @file
/// The option that selects the device, the same in all programs.

namespace rankwise {

/// Declares `--device`.
void declare_device(OptionTable& table, DeviceKind& device);

}  // namespace rankwise
