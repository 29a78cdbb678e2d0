#pragma once

#include <vector>

#include "common/collectives/collectives.hpp"
#include "gpt2/kernels/kernels.hpp"

/// @file
/// The norm of gradients that are sharded over the ranks.

namespace rankwise {

/// Sum of the squares of all elements over all ranks. All ranks get the same bits, because an ExactScalar does not
/// depend on the order of its terms. If the kernels add every square as a separate term, the bits do not depend on
/// the sharding either. No root is taken.
/// @param kernels  squared_norm() gives the ExactScalar of one tensor; such sums are added by +=, and over ranks by
///                 all_reduce_sum(), and value() rounds them to a double.
/// @param own      shards of this rank, at least one; some may be empty. Every element is owned by one rank.
/// @param group    the ranks that together own all elements; all of them make this call.
/// @cost           one all-reduce of 32 bytes, however many shards there are.
double squared_norm(const Kernels& kernels, const std::vector<Tensor>& own, Group& group);

}  // namespace rankwise
