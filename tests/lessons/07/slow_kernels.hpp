#pragma once

#include <memory>

#include "gpt2/kernels/kernels.hpp"

/// @file
/// For tests of work that overlaps with the arithmetic.

namespace rankwise::testing {

/// The reference kernels, which take some milliseconds for add(): what is read ahead is there before.
std::unique_ptr<Kernels> make_slow_kernels();

}  // namespace rankwise::testing
