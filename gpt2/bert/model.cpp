#include "gpt2/bert/model.hpp"

#include <algorithm>

namespace rankwise {

namespace {

constexpr Range segment_numbers{0, bert_segments}, labels{0, next_sentence_labels};

/// The first row of each sequence, [CLS], as a matrix (B, C) inside (R, C).
Matrix first_rows(const Tensor& rows, const PairMicroBatch& batch, std::int64_t C)
{
  return {rows, batch.rows.sequences.count, C, batch.rows.tokens.count * C, 1};
}

/// Adds the gradients of y = x weight + bias.
void linear_backward(const Kernels& kernels, const LinearTensors& d, const Matrix& x, const Matrix& dy,
                     const SumOrder& order)
{
  kernels->bias_backward(d.bias, dy.data, order);
  kernels->matmul(Matrix::of(d.weight, x.columns), x.transposed(), dy, order, {}, /*accumulate=*/true);
}

}  // namespace

PairMicroBatch place(const BertActivations& activations, Stream& stream, const PairBatch& batch, Range sequences,
                     std::int64_t step)
{
  check(sequences.count == batch.B, "a batch does not have as many sequences as its range");
  const auto copy = [&](const Tensor& to,
                        const std::vector<Token>& from) {  // a Tensor may be written to; this is not
    stream.copy(to, Tensor(const_cast<Token*>(from.data()), DType::i32, {std::ssize(from)}));
  };
  copy(activations.inputs, batch.inputs);
  copy(activations.targets, batch.targets);
  copy(activations.segments, batch.segments);
  copy(activations.lengths, batch.lengths);
  copy(activations.labels, batch.labels);
  PairMicroBatch placed;
  placed.inputs = activations.inputs;
  placed.targets = activations.targets;
  placed.rows = {sequences, {0, batch.T}};
  placed.step = step;
  placed.valid_tokens = batch.predicted;
  placed.lengths = activations.lengths;
  placed.segments = activations.segments;
  placed.labels = activations.labels;
  placed.pairs = batch.pairs;
  return placed;
}

BertLoss& BertLoss::operator+=(const BertLoss& other)
{
  tokens += other.tokens;
  pairs += other.pairs;
  return *this;
}

// ---- embedding -------------------------------------------------------------------------------------------------

void BertEmbedding::forward(const Tensor& x, const Tensor& scratch, const BertActivations& a,
                            const BertEmbeddingTensors& p, const PairMicroBatch& batch) const
{
  const Kernels& kernels = context_.kernels;
  kernels->token_forward(a.embedding_sum, p.token, batch.inputs, {0, p.token.extent(0)});
  kernels->token_forward(scratch, p.segment, batch.segments, segment_numbers);
  kernels->add(a.embedding_sum, scratch);
  kernels->position_forward(a.embedding_sum, a.embedding_sum, p.position, batch.rows, {});
  kernels->norm_forward(x, a.embedding_mean, a.embedding_rstd, a.embedding_sum, p.norm_weight, p.norm_bias,
                        bert_norm_epsilon);
  stream_.copy(a.embedding_norm_weight, p.norm_weight);
  const Dropout dropout = context_.dropout_of(Purpose::embedding_dropout, 0, batch);
  if (dropout.active()) kernels->dropout(x, x, dropout);
}

void BertEmbedding::backward(const BertEmbeddingTensors& d, const Tensor& dx, const Tensor& scratch,
                             const BertActivations& a, const PairMicroBatch& batch) const
{
  const Kernels& kernels = context_.kernels;
  const SumOrder order = batch_order(batch);
  const Dropout dropout = context_.dropout_of(Purpose::embedding_dropout, 0, batch);
  if (dropout.active()) kernels->dropout(dx, dx, dropout);
  const Tensor& dsum = scratch;
  stream_.zero(dsum);
  kernels->norm_backward(dsum, d.norm_weight, d.norm_bias, dx, a.embedding_sum, a.embedding_mean, a.embedding_rstd,
                         a.embedding_norm_weight, order);
  kernels->position_backward(d.position, dsum, batch.rows);
  kernels->token_backward(d.segment, dsum, batch.segments, segment_numbers, order);
  kernels->token_backward(d.token, dsum, batch.inputs, {0, d.token.extent(0)}, order);
}

// ---- branch ----------------------------------------------------------------------------------------------------

void BertBranch::forward(const Tensor& next, const Tensor& scratch, const BranchActivations& a,
                         const BranchTensors& p, const PairMicroBatch& batch) const
{
  // Branch::add() adds to the rows that enter the branch, which are `normalised` here.
  BranchActivations entering = a;
  entering.input = a.normalised;
  branch_.apply(scratch, a, p, batch);
  branch_.add(a.input, entering, scratch, p, batch);
  context_.kernels->norm_forward(next, a.mean, a.rstd, a.input, p.norm_weight, p.norm_bias, bert_norm_epsilon);
}

void BertBranch::backward(const Tensor& dx, const BranchTensors& d, const Tensor& dsum, const Tensor& wide,
                          const BranchActivations& a, const BranchTensors& p, const PairMicroBatch& batch) const
{
  const Kernels& kernels = context_.kernels;
  stream_.zero(dsum);
  kernels->norm_backward(dsum, d.norm_weight, d.norm_bias, dx, a.input, a.mean, a.rstd, p.norm_weight,
                         batch_order(batch));
  // dx has been used: the branch's part of the gradient of x takes its place, and dsum is the residual's part.
  const Tensor doutput = branch_.add_backward(d, dsum, dx, batch);
  branch_.apply_backward(dx, d, doutput, wide, a, p, batch);
  kernels->add(dx, dsum);
}

// ---- head ------------------------------------------------------------------------------------------------------

BertLoss BertHead::forward(const BertActivations& a, const BertHeadTensors& p, const PairMicroBatch& batch) const
{
  const Kernels& kernels = context_.kernels;
  const std::int64_t R = batch.rows.count(), B = batch.rows.sequences.count, C = context_.config.channels;
  const SumOrder over_channels = SumOrder::sequential(C);
  // Every token: logits = norm(gelu(x W + b)) E' + bias. Only the masked ones have a target.
  const HeadActivations& h = a.head;
  kernels->matmul_gelu_forward(a.transform_hidden, Matrix::of(a.transform_inner, R), Matrix::of(h.input, R),
                               Matrix::of(p.transform.weight, C), over_channels, p.transform.bias);
  kernels->norm_forward(h.normalised, h.mean, h.rstd, a.transform_hidden, p.norm_weight, p.norm_bias,
                        bert_norm_epsilon);
  kernels->matmul(Matrix::of(h.logits, R), Matrix::of(h.normalised, R),
                  Matrix::of(p.token, p.token.extent(0)).transposed(), over_channels, p.bias);
  kernels->row_statistics(h.maximum, h.sum, h.target_logit, h.logits, batch.targets, vocabulary(),
                          vocabulary_order());
  // The first token of each sequence: two logits, from tanh(x W + b).
  const Matrix pooled = Matrix::of(a.pooled, B);
  kernels->matmul(pooled, first_rows(h.input, batch, C), Matrix::of(p.pooler.weight, C), over_channels,
                  p.pooler.bias);
  kernels->tanh_forward(a.pooled, a.pooled);
  kernels->matmul(Matrix::of(a.next_logits, B), pooled, Matrix::of(p.next_sentence.weight, C), over_channels,
                  p.next_sentence.bias);
  kernels->row_statistics(a.next_maximum, a.next_sum, a.next_target, a.next_logits, batch.labels, labels,
                          SumOrder::sequential(labels.count));
  return loss(a, batch);
}

BertLoss BertHead::loss(const BertActivations& a, const PairMicroBatch& batch) const
{
  const Kernels& kernels = context_.kernels;
  return {{kernels->loss_sum(a.head.sum, a.head.maximum, a.head.target_logit, batch.targets), batch.valid_tokens},
          {kernels->loss_sum(a.next_sum, a.next_maximum, a.next_target, batch.labels), batch.pairs}};
}

BertLoss BertHead::errors(const BertActivations& a, const PairMicroBatch& batch) const
{
  const auto wrong = [&](const Tensor& maximum, const Tensor& target_logit, const Tensor& targets,
                         std::int64_t counted) {
    const std::vector<float> largest = to_host<float>(stream_, maximum),
                             wanted = to_host<float>(stream_, target_logit);
    const auto target = to_host<std::int32_t>(stream_, targets);
    LossSum sum{{}, counted};
    for (std::size_t r = 0; r < target.size(); ++r)
      if (target[r] >= 0 && wanted[r] < largest[r]) sum.nats.add(1);
    return sum;
  };
  return {wrong(a.head.maximum, a.head.target_logit, batch.targets, batch.valid_tokens),
          wrong(a.next_maximum, a.next_target, batch.labels, batch.pairs)};
}

void BertHead::tokens_backward(const Tensor& dx, const Tensor& scratch, const BertHeadTensors& d,
                               const BertActivations& a, const BertHeadTensors& p,
                               const PairMicroBatch& batch) const
{
  const Kernels& kernels = context_.kernels;
  const std::int64_t R = batch.rows.count(), C = context_.config.channels, V = p.token.extent(0);
  const SumOrder order = batch_order(batch);
  const HeadActivations& h = a.head;
  // forward:  logits = n E' + bias,  n = norm(g),  g = gelu(x W + b)
  kernels->loss_backward(h.logits, h.maximum, h.sum, batch.targets, vocabulary());
  kernels->bias_backward(d.bias, h.logits, order);
  kernels->matmul(Matrix::of(d.token, V), Matrix::of(h.logits, R).transposed(), Matrix::of(h.normalised, R), order,
                  {}, /*accumulate=*/true);
  kernels->matmul(Matrix::of(scratch, R), Matrix::of(h.logits, R), Matrix::of(p.token, V), vocabulary_order());
  stream_.zero(dx);
  kernels->norm_backward(dx, d.norm_weight, d.norm_bias, scratch, a.transform_hidden, h.mean, h.rstd, p.norm_weight,
                         order);
  kernels->gelu_backward(scratch, dx, a.transform_inner);
  linear_backward(kernels, d.transform, Matrix::of(h.input, R), Matrix::of(scratch, R), order);
  kernels->matmul(Matrix::of(dx, R), Matrix::of(scratch, R), Matrix::of(p.transform.weight, C).transposed(),
                  SumOrder::sequential(C));
}

void BertHead::pairs_backward(const Tensor& dx, const Tensor& dpooled, const BertHeadTensors& d,
                              const BertActivations& a, const BertHeadTensors& p, const PairMicroBatch& batch) const
{
  const Kernels& kernels = context_.kernels;
  const std::int64_t B = batch.rows.sequences.count, C = context_.config.channels;
  const SumOrder order = SumOrder::sequences(B);
  // forward:  logits = t W2 + b2,  t = tanh(x W + b),  x the first row of each sequence
  kernels->loss_backward(a.next_logits, a.next_maximum, a.next_sum, batch.labels, labels, batch.pair_weight);
  const Matrix dlogits = Matrix::of(a.next_logits, B), dt = Matrix::of(dpooled, B);
  linear_backward(kernels, d.next_sentence, Matrix::of(a.pooled, B), dlogits, order);
  kernels->matmul(dt, dlogits, Matrix::of(p.next_sentence.weight, C).transposed(),
                  SumOrder::sequential(labels.count));
  kernels->tanh_backward(dpooled, dpooled, a.pooled);
  linear_backward(kernels, d.pooler, first_rows(a.head.input, batch, C), dt, order);
  kernels->matmul(first_rows(dx, batch, C), dt, Matrix::of(p.pooler.weight, C).transposed(),
                  SumOrder::sequential(C), {}, /*accumulate=*/true);
}

void BertHead::backward(const Tensor& dx, const Tensor& scratch, const BertHeadTensors& d, const BertActivations& a,
                        const BertHeadTensors& p, const PairMicroBatch& batch) const
{
  tokens_backward(dx, scratch, d, a, p, batch);
  const std::int64_t B = batch.rows.sequences.count, C = context_.config.channels;
  pairs_backward(dx, scratch.slice({0, B * C}), d, a, p, batch);
}

// ---- chain -----------------------------------------------------------------------------------------------------

BertModel::BertModel(const ModelContext& context, Stream& stream)
    : embedding(context, stream), head(context, stream)
{
  check_config(context.config);
  for (int i = 0; i < 2 * context.config.layers; ++i) branches.emplace_back(context, stream, i);
}

BertLoss forward_backward(const BertModel& model, const ParameterTable& table, const Tensor& p, const Tensor& d,
                          const Tensor& d_tied, const BertActivations& kept, const Workspace& work,
                          const PairMicroBatch& batch)
{
  const auto views = [&](const Tensor& flat, int unit) {
    return unit_tensors(table, unit, flat.slice(table.unit_elements(unit)));
  };
  const int head = static_cast<int>(model.branches.size()) + 1;
  const BertEmbeddingTensors p_embedding = bert_embedding_tensors(views(p, 0)),
                             d_embedding = bert_embedding_tensors(views(d, 0));
  const BertHeadTensors p_head = bert_head_tensors(views(p, head), p_embedding.token);
  const Tensor d_token = d_tied.empty() ? d_embedding.token : d_tied.reshaped(d_embedding.token.shape());

  model.embedding.forward(kept.rows_before(0), work.output, kept, p_embedding, batch);
  for (std::size_t i = 0; i < model.branches.size(); ++i)
    model.branches[i].forward(kept.rows_before(i + 1), work.output, kept.branches[i],
                              branch_tensors(views(p, model.branches[i].unit())), batch);
  const BertLoss loss = model.head.forward(kept, p_head, batch);

  const Tensor& dx = work.dstream;
  model.head.backward(dx, work.output, bert_head_tensors(views(d, head), d_token), kept, p_head, batch);
  for (std::size_t i = model.branches.size(); i-- > 0;) {
    const int unit = model.branches[i].unit();
    model.branches[i].backward(dx, branch_tensors(views(d, unit)), work.output, work.wide, kept.branches[i],
                               branch_tensors(views(p, unit)), batch);
  }
  model.embedding.backward(d_embedding, dx, work.output, kept, batch);
  return loss;
}

}  // namespace rankwise
