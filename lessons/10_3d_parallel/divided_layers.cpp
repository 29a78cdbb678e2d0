#include "lessons/10_3d_parallel/divided_layers.hpp"

namespace rankwise {

std::vector<RowGradients> make_row_gradients(const Run& run, const std::vector<LocalStage>& stages)
{
  std::vector<RowGradients> sums;
  for (const LocalStage& own : stages) {
    const ParameterTable table(run.config, run.shape.part, own.stage.units);
    sums.emplace_back(run.memory, *run.stream, table, run.shape, *run.kernels);
  }
  return sums;
}

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
