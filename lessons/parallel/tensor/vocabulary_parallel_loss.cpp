#include "lessons/parallel/tensor/vocabulary_parallel_loss.hpp"

#include "common/base/error.hpp"

namespace rankwise {

LossSum vocabulary_parallel_loss(const Head& head, const HeadTensors& weights, const HeadActivations& kept,
                                 const MicroBatch& batch, TensorParallelMessages& parts)
{
  // Every rank needs all rows, (R, C), and computes the logits of its V / t vocabulary entries, (R, V / t).
  head.normalise(parts.own(kept), weights);
  const HeadActivations a = parts.gathered(kept);
  head.logits(a, weights);
  // Soft-max of a row needs the largest of all V logits; the sum of exp(logit - maximum), to which each rank adds
  // V / t terms; and the target's logit, which one rank has, while the others contribute zero. Each is (R).
  // BEGIN EXERCISE 08.4
  head.row_maximum(a);
  parts.largest(a.maximum);
  head.row_sum(a, batch);
  parts.sum_numbers(a.sum);
  parts.sum_numbers(a.target_logit);
  return head.loss(a, batch);
  // END EXERCISE
}

}  // namespace rankwise
