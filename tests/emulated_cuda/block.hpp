#pragma once

#include <cuda_runtime.h>
#include <functional>
#include <optional>
#include <string>

/// @file
/// How a block of a kernel runs: its threads take turns on one processor.
///
/// A thread runs until it has to wait for others. The next thread is then drawn at random, so that a kernel that relies
/// on an order that is not guaranteed gives other results with other seeds.

namespace emulated_cuda {

/// Runs all threads of one block.
/// @param thread  what each of them does; blockIdx, blockDim and gridDim are set.
/// @return  the error, if the threads deadlock or use a wrong mask.
std::optional<std::string> run_block(const std::function<void()>& thread);

}  // namespace emulated_cuda
