#pragma once

#include <string>

/// @file
/// Names of functions, for messages.

namespace emulated_cuda {

/// A function's name as its source has it, as far as the program's symbols tell; else its address.
std::string kernel_name(const void* function);

}  // namespace emulated_cuda
