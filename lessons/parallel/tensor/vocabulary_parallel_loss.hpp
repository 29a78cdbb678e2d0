#pragma once

#include "gpt2/model.hpp"
#include "lessons/parallel/tensor/tensor_parallel_messages.hpp"

/// @file
/// The loss over a vocabulary that tensor-parallel ranks divide.

namespace rankwise {

/// The loss of a micro-batch over a divided vocabulary: the tensor-parallel ranks exchange the maximum, the sum of
/// exponentials and the target's logit of each token, 12 R bytes, and no logits (Shoeybi et al. 2019, section 3).
/// @param[in,out] kept  what the backward pass needs: this rank's rows of the norm and its (R, V / t) logits.
LossSum vocabulary_parallel_loss(const Head& head, const HeadTensors& weights, const HeadActivations& kept,
                                 const MicroBatch& batch, TensorParallelMessages& parts);

}  // namespace rankwise
