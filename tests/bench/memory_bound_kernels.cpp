#include "tests/bench/memory_bound_kernels.hpp"

#include <iterator>

namespace rankwise {

namespace {

/// What the cases are made of.
struct Pieces {
  Training& training;
  const ModelTensors& p;
  ModelTensors d;                // gradients
  const BranchActivations& mlp;  // of the first MLP branch
  const HeadActivations& head;
  const Tensor &y, &dx, &wide;  // (R, C), (R, C), (R, 4 C)
  Rows rows;
  SumOrder over_batch;
  Range vocabulary;
};

Pieces pieces_of(Training& t)
{
  const GradientTensors gradients = t.gradients->begin({0, t.shape.B});
  return {t,
          t.weights,
          model_tensors(t.table, gradients),
          t.kept.branches.at(1),
          t.kept.head,
          t.work.output,
          t.work.dstream,
          t.work.wide,
          {{0, t.shape.B}, {0, t.shape.T}},
          SumOrder::batch(t.shape.B, t.shape.T),
          {0, t.config.vocabulary}};
}

std::vector<KernelCase> branch_kernels(const Pieces& s)
{
  const BranchTensors &p = s.p.branches.at(1), &d = s.d.branches.at(1);
  const BranchActivations& a = s.mlp;
  const Tensor wide = s.wide.reshaped(a.inner.shape());
  return {
      {"norm forward",
       [=](const Kernels& k) {
         k->norm_forward(a.normalised, a.mean, a.rstd, a.input, p.norm_weight, p.norm_bias);
       }},
      {"norm backward",
       [=](const Kernels& k) {
         k->norm_backward(s.dx, d.norm_weight, d.norm_bias, s.y, a.input, a.mean, a.rstd, p.norm_weight,
                          s.over_batch);
       }},
      {"GELU forward", [=](const Kernels& k) { k->bias_gelu_forward(a.hidden, a.inner, p.in_bias); }},
      {"GELU backward", [=](const Kernels& k) { k->gelu_backward(wide, a.hidden, a.inner); }},
      {"residual forward", [=](const Kernels& k) { k->residual_forward(s.dx, a.input, s.y, p.out_bias, {}); }},
      {"bias backward", [=](const Kernels& k) { k->bias_backward(d.in_bias, wide, s.over_batch); }},
  };
}

std::vector<KernelCase> embedding_kernels(const Pieces& s)
{
  const EmbeddingTensors &p = s.p.embedding, &d = s.d.embedding;
  const Tensor& tokens = s.training.kept.inputs;
  return {
      {"token forward", [=](const Kernels& k) { k->token_forward(s.y, p.token, tokens, s.vocabulary); }},
      {"position forward", [=](const Kernels& k) { k->position_forward(s.dx, s.y, p.position, s.rows, {}); }},
      {"token backward",
       [=](const Kernels& k) { k->token_backward(d.token, s.dx, tokens, s.vocabulary, s.over_batch); }},
      {"position backward", [=](const Kernels& k) { k->position_backward(d.position, s.dx, s.rows); }},
  };
}

std::vector<KernelCase> loss_kernels(const Pieces& s)
{
  const HeadActivations& a = s.head;
  const Tensor& targets = s.training.kept.targets;
  const SumOrder order = SumOrder::split(s.training.config.padded_vocabulary(), leaves_of(Part{}));
  return {
      {"loss statistics",
       [=](const Kernels& k) {
         k->row_statistics(a.maximum, a.sum, a.target_logit, a.logits, targets, s.vocabulary, order);
       }},
      {"loss backward",
       [=](const Kernels& k) { k->loss_backward(a.logits, a.maximum, a.sum, targets, s.vocabulary); }},
  };
}

std::vector<KernelCase> parameter_kernels(Training& t)
{
  const Tensor gradient = t.gradients->total();
  return {
      {"gradient norm", [=](const Kernels& k) { k->squared_norm(gradient); }},
      {"AdamW", [&t, gradient](const Kernels& k) { t.adamw.step(k, t.parameters.tensor(), gradient, 1e-6, 1e-6); }},
  };
}

}  // namespace

std::vector<KernelCase> memory_bound_kernels(Training& training)
{
  const Pieces pieces = pieces_of(training);
  std::vector<KernelCase> all;
  for (std::vector<KernelCase> some :
       {branch_kernels(pieces), embedding_kernels(pieces), loss_kernels(pieces), parameter_kernels(training)})
    std::move(some.begin(), some.end(), std::back_inserter(all));
  return all;
}

MinimalWork work_of(const KernelCase& kernel, Training& training)
{
  MeasuredGroups measured;
  kernel.call(make_measured_kernels(training.kernels, measured, training.stream.get()));
  MinimalWork work;
  for (int g = 0; g < kernel_group_count; ++g) {
    const MinimalWork& of_group = measured.total(static_cast<KernelGroup>(g)).work;
    work.flops += of_group.flops;
    work.bytes += of_group.bytes;
  }
  return work;
}

}  // namespace rankwise
