#pragma once

#include <string>

/// @file
/// Names of functions, for messages.

namespace emulated_cuda {

/// A function's name as in the source, if the program's symbols have it; else its address.
std::string kernel_name(const void* function);

}  // namespace emulated_cuda
