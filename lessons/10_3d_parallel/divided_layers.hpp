#pragma once

#include <vector>

#include "lessons/08_tensor_parallel/row_gradients.hpp"
#include "lessons/09_pipeline_parallel/local_stage.hpp"

/// @file
/// Tensor parallelism inside a stage.

namespace rankwise {

/// Sums over this rank's rows, of each stage of a rank.
/// @param run     of the rank; outlives the sums.
/// @param stages  of the rank, in order.
std::vector<RowGradients> make_row_gradients(const Run& run, const std::vector<LocalStage>& stages);

}  // namespace rankwise
