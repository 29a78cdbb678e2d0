#include "lessons/16_five_axes/stage_layers.hpp"

#include "lessons/parallel/mesh/divided_layers.hpp"
#include "lessons/parallel/tensor/vocabulary_parallel_loss.hpp"

namespace rankwise {

StageLayers::StageLayers(Run& run, const FiveAxesPlan& plan, const std::vector<LocalStage>& stages,
                         const RunWorkspaces& work, ExpertsOnMesh& experts, Group& cp, Group& tp)
    : run_(run),
      experts_(experts),
      tp_(tp),
      attention_(run, plan.ring.runs, cp),
      row_gradients_{make_row_gradients(run, stages), make_row_gradients(run, stages)}
{
  for (const auto& scratch : work)
    parts_.emplace_back(tp, run.shape, run.config.channels, *scratch, run.kernels, run.time);
}

namespace {

/// What a tensor of both runs, (2, R, C), has of run @p k; empty if there is none.
Tensor half(const Tensor& both, std::size_t k)
{
  if (both.empty()) return {};
  const std::int64_t C = both.extent(1), count = both.elements() / 2;
  return both.slice({static_cast<std::int64_t>(k) * count, count}).reshaped({count / C, C});
}

}  // namespace

LossSum StageLayers::forward(const LocalStage& own, std::vector<TokenRun>& both, const Tensor& received,
                             const Tensor& send_buffer)
{
  const auto& [stage, model, weights, gradients, stash] = own;
  for (std::size_t k = 0; k < both.size(); ++k) {
    const TokenRun& mine = both[k];
    if (stage.first) {
      model.embedding.lookup(mine.work.output, weights.embedding, mine.batch);
      model.embedding.add(mine.kept.stream(0), parts_[k].sum(mine.work.output), weights.embedding, rows_of(mine));
    } else {
      run_.stream->copy(mine.kept.stream(0), half(received, k));
    }
  }
  forward_branches(own, 0, model.branches.size(), both, send_buffer);
  LossSum loss;
  for (std::size_t k = 0; stage.last && k < both.size(); ++k)
    loss += vocabulary_parallel_loss(model.head, weights.head, both[k].kept.head, both[k].batch, parts_[k]);
  return loss;
}

void StageLayers::backward(const LocalStage& own, std::size_t place, std::vector<TokenRun>& both,
                           const Tensor& received, const Tensor& send_buffer)
{
  const auto& [stage, model, weights, gradients, stash] = own;
  for (std::size_t k = 0; k < both.size(); ++k) {
    const auto& [tokens, scratch, kept, batch, gradient, doutput] = both[k];
    if (!stage.last) {
      run_.stream->copy(scratch.dstream, half(received, k));
      continue;
    }
    model.head.apply_backward(scratch.output, gradient.head, parts_[k].regathered(kept.head), weights.head, batch);
    const Tensor dhead = parts_[k].sum(scratch.output);
    run_.stream->zero(scratch.dstream);
    row_gradients_[k][place].normalise_backward(model.head, scratch.dstream, gradient.head, dhead, kept.head,
                                                weights.head, rows_of(both[k]));
  }
  for (std::size_t i = model.branches.size(); i-- > 0;) {
    const bool last_of_block = i % 2 == 1;
    if (run_.shape.recompute && last_of_block) forward_branches(own, i - 1, i + 1, both);
    backward_branch(own, place, i, both);
  }
  for (std::size_t k = 0; k < both.size(); ++k) {
    const TokenRun& mine = both[k];
    if (stage.first)
      model.embedding.backward(mine.gradient.embedding, parts_[k].gather(mine.work.dstream, mine.work.output),
                               mine.batch);
    else
      run_.stream->copy(half(send_buffer, k), mine.work.dstream);
  }
}

/// Forward pass of branches [first, last) of a stage.
/// @param send_buffer  for the output of the stage, except in the last one. Empty on recomputation.
void StageLayers::forward_branches(const LocalStage& own, std::size_t first, std::size_t last,
                                   std::vector<TokenRun>& both, const Tensor& send_buffer)
{
  const auto& [stage, model, weights, gradients, stash] = own;
  for (std::size_t i = first; i < last; ++i) {
    const Branch& branch = model.branches[i];
    const BranchTensors& p = weights.branches[i];
    // Each run of tokens alone: the norm, operator f of lesson 08, and the layers that work row by row.
    std::vector<BranchActivations> whole;  // with the normalised rows of all tp ranks
    for (std::size_t k = 0; k < both.size(); ++k) {
      const BranchActivations& a = both[k].kept.branches[i];
      branch.normalise(parts_[k].own(a), p);
      whole.push_back(parts_[k].gathered(a));
      if (branch.attention())
        branch.query_key_value(whole[k], p, both[k].batch);
      else if (!branch.experts())
        branch.apply(both[k].work.output, whole[k], p, both[k].batch);
    }
    // NEW: where tokens of other ranks are needed: along cp attention meets all keys, with this rank's heads; along ep
    // rows meet the experts that the router has chosen, after ranks along cp have told each other its choices.
    if (branch.attention()) attention_.forward(branch, i, both);
    if (branch.experts()) experts_.forward(branch, p, both, whole);
    // Each run alone again: operator g, and the residual connection. Experts have been summed along tp already.
    const bool sent_on = i + 1 == model.branches.size() && !stage.last;
    for (std::size_t k = 0; k < both.size(); ++k) {
      const TokenRun& mine = both[k];
      const BranchActivations& a = mine.kept.branches[i];
      if (branch.attention()) branch.project(mine.work.output, a, p, mine.batch);
      const Tensor sum = branch.experts() ? parts_[k].own_of(mine.work.output) : parts_[k].sum(mine.work.output);
      const Tensor next = sent_on ? half(send_buffer, k) : mine.kept.stream(i + 1);
      if (!next.empty()) branch.add(next, a, sum, p, rows_of(mine));
    }
  }
}

/// Backward pass of branch @p i of a stage: the same three parts, last first.
void StageLayers::backward_branch(const LocalStage& own, std::size_t place, std::size_t i,
                                  std::vector<TokenRun>& both)
{
  const Branch& branch = own.model.branches[i];
  const BranchTensors& p = own.weights.branches[i];
  for (std::size_t k = 0; k < both.size(); ++k) {
    TokenRun& mine = both[k];
    const Tensor &dx = mine.work.dstream, &output = mine.work.output;
    const Tensor scratch = output.slice({0, dx.elements()}).reshaped(dx.shape());
    const Tensor doutput = branch.experts() ? branch.output_backward(dx, scratch, rows_of(mine))
                                            : row_gradients_[k][place].add_backward(
                                                  branch, mine.gradient.branches[i], dx, output, rows_of(mine));
    mine.doutput = parts_[k].gather(doutput, output);
    if (branch.attention()) branch.hidden_backward(mine.dhidden(), mine.doutput, p, mine.batch);
  }
  if (branch.attention()) attention_.backward(branch, i, both);
  for (std::size_t k = 0; k < both.size(); ++k) {
    const TokenRun& mine = both[k];
    const Tensor& output = mine.work.output;
    const BranchTensors& d = mine.gradient.branches[i];
    const BranchActivations &a = mine.kept.branches[i], whole = parts_[k].regathered(a);
    if (branch.attention()) {
      branch.weights_backward(d, mine.doutput, mine.dinner(), whole, mine.batch);
      branch.normalised_backward(output, mine.dinner(), p, mine.batch);
    } else if (branch.experts()) {
      experts_.backward(place, branch, p, d.router, mine, k, whole);
    } else {
      branch.apply_backward(output, d, mine.doutput, mine.work.wide, whole, p, mine.batch);
    }
    const Tensor dnormalised = branch.experts() ? parts_[k].own_of(output) : parts_[k].sum(output);
    row_gradients_[k][place].normalise_backward(branch, mine.work.dstream, d, dnormalised, a, p, rows_of(mine));
  }
}

}  // namespace rankwise
