#pragma once

#include <vector>

#include "common/collectives/collectives.hpp"
#include "gpt2/kernels/kernels.hpp"

/// @file
/// The norm of gradients of which each rank has a shard.

namespace rankwise {

/// The sum of the squares of all elements of which each rank has some; the same bits on all ranks, since an ExactScalar
/// does not depend on the order of its terms. With kernels that make every square a term of its own they do not depend on
/// how the elements are shared out either.
/// @param own    of this rank, one tensor or more; no element is another rank's too.
/// @param group  the ranks that have them all together.
/// @cost         an all-reduce of 32 bytes.
double squared_norm(const Kernels& kernels, const std::vector<Tensor>& own, Group& group);

}  // namespace rankwise
