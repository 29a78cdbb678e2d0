#pragma once

#include <vector>

#include "lessons/08_tensor_parallel/row_gradients.hpp"
#include "lessons/08_tensor_parallel/tensor_parallel_messages.hpp"
#include "lessons/09_pipeline_parallel/local_stage.hpp"

/// @file
/// Tensor parallelism inside a stage.

namespace rankwise {

/// Sums over this rank's rows, of each stage of a rank.
/// @param run     of the rank; outlives the sums.
/// @param stages  of the rank, in order.
std::vector<RowGradients> make_row_gradients(const Run& run, const std::vector<LocalStage>& stages);

/// The loss of a micro-batch over a divided vocabulary, as in lesson 08: the tensor-parallel ranks exchange the
/// maximum, the sum of exponentials and the target's logit of each token.
LossSum vocabulary_parallel_loss(const Head& head, const HeadTensors& weights, const HeadActivations& kept,
                                 const MicroBatch& batch, TensorParallelMessages& parts);

}  // namespace rankwise
