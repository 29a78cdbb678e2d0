#pragma once

#include "gpt2/model.hpp"
#include "lessons/08_tensor_parallel/tensor_parallel_messages.hpp"

/// @file
/// The loss over a vocabulary that tensor-parallel ranks divide.

namespace rankwise {

/// The loss of a micro-batch over a divided vocabulary, for lessons that build on this one: the tensor-parallel ranks
/// exchange the maximum, the sum of exponentials and the target's logit of each token.
LossSum vocabulary_parallel_loss(const Head& head, const HeadTensors& weights, const HeadActivations& kept,
                                 const MicroBatch& batch, TensorParallelMessages& parts);

}  // namespace rankwise
