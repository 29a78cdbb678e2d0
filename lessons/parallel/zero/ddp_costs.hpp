#pragma once

#include <vector>

#include "lessons/frame/costs.hpp"
#include "lessons/parallel/zero/ddp_options.hpp"

/// @file
/// Memory and traffic of data parallelism, computed from the sizes alone.

namespace rankwise {

/// The all-reduces of one step's gradients.
std::vector<CollectiveShape> gradient_sums(const DdpOptions& options);

/// Memory and traffic of rank r of N.
///
///     model state   as on one device: each rank has all of it
///     activations   of one micro-batch
///     sent          2 (N-1)/N of the gradients in a step: an all-reduce of 4 P bytes (bf16: 2 P) by a ring
Costs costs(const DdpOptions& options, RankOf rank);

}  // namespace rankwise
