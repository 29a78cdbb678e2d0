#pragma once

#include <cstdint>
#include <string>

#include "lessons/01_single_device/options.hpp"
#include "lessons/frame/costs.hpp"

/// @file
/// Memory of a run on one device, computed from the sizes alone.

namespace rankwise {

/// Memory by category; nothing is sent.
///
///     parameters   4 P bytes (bf16: 2 P)
///     gradients    4 P (--gradients=bf16: 2 P)
///     optimizer    8 P: two moments (bf16: 12 P, with the master weights)
///     activations  s R (16 L C + 2 C + V) + 4 R (L (4 + H) + 7), s = 4 or 2 bytes an element, R = B T
Costs costs(const SingleDeviceOptions& options, RankOf rank);

/// Options with which the run would fit into @p bytes, as a sentence.
std::string suggest_options(const SingleDeviceOptions& options, int N, std::int64_t bytes);

}  // namespace rankwise
