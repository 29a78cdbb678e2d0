// The chain of all building blocks on one device.

#include "gpt2/experts/expert_layer.hpp"
#include "gpt2/model.hpp"

namespace rankwise {

Model::Model(const ModelContext& shared, Range units) : context(shared), embedding(shared), head(shared)
{
  check_config(shared.config);
  const Range all{0, unit_count(shared.config)};
  for (int i = 0; i < 2 * shared.config.layers; ++i)
    if ((units.count < 0 ? all : units).contains(1 + i)) branches.emplace_back(shared, i);
}

namespace {

/// Forward pass of branches [first, first + count).
void forward_branches(const Model& model, Range which, const ModelTensors& p, const Activations& kept,
                      const Workspace& work, const MicroBatch& batch)
{
  for (auto i = static_cast<std::size_t>(which.first); i < static_cast<std::size_t>(which.end()); ++i) {
    const Branch& branch = model.branches[i];
    branch.normalise(kept.branches[i], p.branches[i]);
    if (branch.experts()) {
      apply_experts(model.context, work, kept.branches[i], p.branches[i], batch);
      branch.add(kept.stream(i + 1), kept.branches[i], work.output, without_bias(p.branches[i], work), batch);
      continue;
    }
    branch.apply(work.output, kept.branches[i], p.branches[i], batch);
    branch.add(kept.stream(i + 1), kept.branches[i], work.output, p.branches[i], batch);
  }
}

}  // namespace

LossSum forward(const Model& model, const ModelTensors& p, const Activations& kept, const Workspace& work,
                const MicroBatch& batch)
{
  model.embedding.lookup(work.output, p.embedding, batch);
  model.embedding.add(kept.stream(0), work.output, p.embedding, batch);
  forward_branches(model, {0, static_cast<std::int64_t>(model.branches.size())}, p, kept, work, batch);
  return model.head.forward(kept.head, p.head, batch);
}

LossSum forward_backward(const Model& model, const ModelTensors& p, const ModelTensors& d, const Activations& kept,
                         const Workspace& work, Stream& stream, const MicroBatch& batch)
{
  const LossSum loss = forward(model, p, kept, work, batch);
  const Tensor &dx = work.dstream, &dnormalised = work.output;
  model.head.apply_backward(dnormalised, d.head, kept.head, p.head, batch);
  stream.zero(dx);
  model.head.normalise_backward(dx, d.head, dnormalised, kept.head, p.head, batch);
  for (std::size_t i = model.branches.size(); i-- > 0;) {
    const bool block_ends = i % 2 == 1;
    if (!work.block.empty() && block_ends)
      forward_branches(model, {static_cast<std::int64_t>(i) - 1, 2}, p, kept, work, batch);
    const Branch& branch = model.branches[i];
    if (branch.experts()) {
      const Tensor doutput = branch.output_backward(dx, work.output, batch);
      apply_experts_backward(model.context, work, d.branches[i], doutput, kept.branches[i], p.branches[i], batch);
    } else {
      const Tensor doutput = branch.add_backward(d.branches[i], dx, work.output, batch);
      branch.apply_backward(dnormalised, d.branches[i], doutput, work.wide, kept.branches[i], p.branches[i], batch);
    }
    branch.normalise_backward(dx, d.branches[i], dnormalised, kept.branches[i], p.branches[i], batch);
  }
  model.embedding.backward(d.embedding, dx, batch);
  return loss;
}

}  // namespace rankwise
