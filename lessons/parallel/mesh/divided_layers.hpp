#pragma once

#include <vector>

#include "lessons/parallel/pipeline/local_stage.hpp"
#include "lessons/parallel/tensor/row_gradients.hpp"

/// @file
/// Tensor parallelism inside a stage.

namespace rankwise {

/// Sums over this rank's rows, of each stage of a rank.
/// @param run     of the rank; outlives the sums.
/// @param stages  of the rank, in order.
std::vector<RowGradients> make_row_gradients(const Run& run, const std::vector<LocalStage>& stages);

}  // namespace rankwise
