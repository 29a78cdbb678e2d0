#include "lessons/08_tensor_parallel/vocabulary_parallel_loss.hpp"

namespace rankwise {

LossSum vocabulary_parallel_loss(const Head& head, const HeadTensors& weights, const HeadActivations& kept,
                                 const MicroBatch& batch, TensorParallelMessages& parts)
{
  head.normalise(parts.own(kept), weights);
  const HeadActivations a = parts.gathered(kept);
  head.logits(a, weights);
  head.row_maximum(a);
  parts.largest(a.maximum);
  head.row_sum(a, batch);
  parts.sum_numbers(a.sum);
  parts.sum_numbers(a.target_logit);
  return head.loss(a, batch);
}

}  // namespace rankwise
