#pragma once

#include <memory>

#include "gpt2/kernels/kernels.hpp"

/// @file
/// For tests of work that overlaps with the arithmetic.

namespace rankwise::testing {

/// The reference kernels with an add() that takes some milliseconds, so that prefetched blocks arrive before it ends.
Kernels make_slow_kernels();

}  // namespace rankwise::testing
