#include "lessons/09_pipeline_parallel/deferred_weights.hpp"

#include <utility>

namespace rankwise {

Tensor BetweenLayers::output_backward(const Branch& branch, const Tensor& dx, const Tensor& /*scratch*/,
                                      const Tensor& all, const MicroBatch& batch)
{
  return branch.output_backward(dx, all, batch);
}

void BetweenLayers::out_bias_backward(const Branch& branch, const BranchTensors& d, const Tensor& doutput,
                                      const MicroBatch& batch)
{
  branch.out_bias_backward(d, doutput, batch);
}

void BetweenLayers::normalise_backward(const Branch& branch, const Tensor& dx, const BranchTensors& d,
                                       const Tensor& dnormalised, const BranchActivations& a,
                                       const BranchTensors& p, const MicroBatch& batch)
{
  branch.normalise_backward(dx, d, dnormalised, a, p, batch);
}

void BetweenLayers::normalise_backward(const Head& head, const Tensor& dx, const HeadTensors& d,
                                       const Tensor& dnormalised, const HeadActivations& a, const HeadTensors& p,
                                       const MicroBatch& batch)
{
  head.normalise_backward(dx, d, dnormalised, a, p, batch);
}

DeferredWeights::DeferredWeights(const Run& run, const LocalStage& own, const InFlight& m, const Workspace& work,
                                 BetweenLayers& between, Recompute recompute)
    : run_(run), own_(own), m_(m), work_(work), between_(between), recompute_(std::move(recompute))
{
}

void DeferredWeights::recompute_block_of(std::size_t branch)
{
  const bool last_of_block = branch % 2 == 1;
  if (run_.shape.recompute && last_of_block) recompute_(branch - 1, branch + 1);
}

void DeferredWeights::backward_input(const Tensor& rows, const Tensor& send_buffer)
{
  const auto& [stage, model, weights, gradients, stash] = own_;
  const auto& [kept, batch, place] = m_;
  const Deferred& deferred = kept.deferred;
  const Tensor &dx = work_.dstream, &output = work_.output;
  Stream& stream = *run_.stream;

  // The gradient of the stage's output: from the loss in the last stage, else received.
  if (stage.last) {
    model.head.logits_backward(output, kept.head, weights.head, batch);
    const Tensor dnormalised = between_.sum(output);
    for (const Tensor& zero : {dx, deferred.norm_weight, deferred.norm_bias}) stream.zero(zero);
    between_.normalise_backward(model.head, dx, {deferred.norm_weight, deferred.norm_bias, {}}, dnormalised,
                                kept.head, weights.head, batch);
  } else {
    stream.copy(dx, rows);
  }
  for (std::size_t i = model.branches.size(); i-- > 0;) {
    recompute_block_of(i);
    const Branch& branch = model.branches[i];
    const BranchTensors& p = weights.branches[i];
    const BranchActivations& a = kept.branches[i];
    const auto& [doutput, dinner, norm_weight, norm_bias] = deferred.branches[i];
    // doutput and dinner are kept for W. Norm gradients are sums over rows that B reads anyway: computed here,
    // added in W.
    const Tensor all = between_.output_backward(branch, dx, output, doutput, batch);
    if (all.raw() != doutput.raw()) stream.copy(doutput, all);
    branch.inner_backward(dinner, work_.wide.slice({0, a.hidden.elements()}), doutput, a, p, batch);
    branch.normalised_backward(output, dinner, p, batch);
    const Tensor dnormalised = between_.sum(output);
    for (const Tensor& zero : {norm_weight, norm_bias}) stream.zero(zero);
    between_.normalise_backward(branch, dx, {norm_weight, norm_bias, {}, {}, {}, {}}, dnormalised, a, p, batch);
  }
  // The stage before waits for dx; the first stage keeps it for the embedding's gradient.
  if (!stage.first) return stream.copy(send_buffer, dx);
  const Tensor all = between_.gather(dx, deferred.stream);
  if (all.raw() != deferred.stream.raw()) stream.copy(deferred.stream, all);
}

void DeferredWeights::backward_weights(const ModelTensors& d)
{
  const auto& [stage, model, weights, gradients, stash] = own_;
  const auto& [kept, batch, place] = m_;
  const Deferred& deferred = kept.deferred;
  const Kernels& kernels = *run_.kernels;

  if (stage.last) {
    model.head.weights_backward(d.head, between_.gathered(kept.head), batch);
    kernels.add(d.head.norm_weight, deferred.norm_weight);
    kernels.add(d.head.norm_bias, deferred.norm_bias);
  }
  for (std::size_t i = model.branches.size(); i-- > 0;) {
    recompute_block_of(i);
    const Branch& branch = model.branches[i];
    const auto& [doutput, dinner, norm_weight, norm_bias] = deferred.branches[i];
    between_.out_bias_backward(branch, d.branches[i], doutput, batch);
    // dA = X' dY of both matrices, from the kept input X and the kept gradient dY.
    branch.weights_backward(d.branches[i], doutput, dinner, between_.gathered(kept.branches[i]), batch);
    kernels.add(d.branches[i].norm_weight, norm_weight);
    kernels.add(d.branches[i].norm_bias, norm_bias);
  }
  if (stage.first) model.embedding.backward(d.embedding, deferred.stream, batch);
}

}  // namespace rankwise
