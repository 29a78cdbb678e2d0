#pragma once

#include <cuda_runtime.h>
#include <functional>
#include <optional>
#include <string>

/// @file
/// How a block of a kernel runs: its threads take turns on one processor.
///
/// A thread runs until it has to wait for others. Who goes on then is drawn at random, so that a kernel which relies
/// upon an order that nothing guarantees gives other results with other seeds.

namespace emulated_cuda {

/// Runs all threads of one block.
/// @param thread  what each of them does; blockIdx, blockDim and gridDim are set.
/// @return  what is wrong if the threads wait for each other in vain, or use a wrong mask.
std::optional<std::string> run_block(const std::function<void()>& thread);

}  // namespace emulated_cuda
