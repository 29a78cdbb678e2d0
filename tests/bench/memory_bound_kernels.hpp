#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gpt2/kernels/kernels.hpp"
#include "tests/bench/measured_kernels.hpp"
#include "tests/bench/training.hpp"

/// @file
/// The kernels of a step that memory bounds, one by one.

namespace rankwise {

/// A kernel with what a step gives to it.
struct KernelCase {
  std::string name;                                  ///< as "norm forward"
  std::function<void(const Kernels& kernels)> call;  ///< once, on the stream of the kernels
};

/// The kernels of a step of @p training that pass over memory and do little else, in the sizes of that step: with the first
/// MLP branch, embedding, logits, all parameters. They may be called as often as one likes; what the training computes
/// afterwards means nothing.
/// @param training  outlives the cases, has made a step, and has one micro-batch without recomputation.
std::vector<KernelCase> memory_bound_kernels(Training& training);

/// The least work of @p kernel: the bytes that it must read and write.
MinimalWork work_of(const KernelCase& kernel, Training& training);

}  // namespace rankwise
