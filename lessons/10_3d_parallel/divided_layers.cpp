#include "lessons/10_3d_parallel/divided_layers.hpp"

#include <utility>

namespace rankwise {

DividedLayers::DividedLayers(TensorParallelMessages& parts, RowGradients over_rows, Part tokens)
    : parts_(parts), over_rows_(std::move(over_rows)), tokens_(tokens)
{
}

Tensor DividedLayers::output_backward(const Branch& branch, const Tensor& dx, const Tensor& scratch,
                                      const Tensor& all, const MicroBatch& batch)
{
  return gather(over_rows_.output_backward(branch, dx, scratch, tokens_of(batch, tokens_)), all);
}

void DividedLayers::out_bias_backward(const Branch& branch, const BranchTensors& d, const Tensor& doutput,
                                      const MicroBatch& batch)
{
  over_rows_.out_bias_backward(branch, d, doutput, batch);
}

void DividedLayers::normalise_backward(const Branch& branch, const Tensor& dx, const BranchTensors& d,
                                       const Tensor& dnormalised, const BranchActivations& a,
                                       const BranchTensors& p, const MicroBatch& batch)
{
  over_rows_.normalise_backward(branch, dx, d, dnormalised, a, p, tokens_of(batch, tokens_));
}

void DividedLayers::normalise_backward(const Head& head, const Tensor& dx, const HeadTensors& d,
                                       const Tensor& dnormalised, const HeadActivations& a, const HeadTensors& p,
                                       const MicroBatch& batch)
{
  over_rows_.normalise_backward(head, dx, d, dnormalised, a, p, tokens_of(batch, tokens_));
}

DividedStages::DividedStages(Run& run, const PipelinePlan& plan, const std::vector<LocalStage>& stages,
                             TensorParallelMessages& parts)
    : ranks_(plan.schedule.ranks), deferred_(run.shape.puts_weights_off)
{
  for (const LocalStage& own : stages) {
    std::vector<DividedLayers>& layers = of_stages_.emplace_back();
    const ParameterTable table(run.config, run.shape.part, own.stage.units);
    for (int place = 0; place < (deferred_ ? plan.in_flight(own.stage) : 1); ++place)
      layers.emplace_back(parts, RowGradients(run.memory, *run.stream, table, run.shape, *run.kernels),
                          run.shape.tokens);
  }
}

DividedLayers& DividedStages::of(const LocalStage& own, const InFlight& m)
{
  return of_stages_[static_cast<std::size_t>(own.stage.number / ranks_)][deferred_ ? m.place : 0];
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
