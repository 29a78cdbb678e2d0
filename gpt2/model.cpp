#include "gpt2/model.hpp"

namespace rankwise {

MicroBatch place(const Activations& activations, Stream& stream, const Batch& batch, Range sequences,
                 std::int64_t step)
{
  check(sequences.count == batch.B, "a batch does not have as many sequences as its range");
  const auto copy = [&](const Tensor& to, const std::vector<Token>& tokens) {
    if (to.empty()) return;
    stream.copy(to, Tensor(const_cast<Token*>(tokens.data()), DType::i32, {batch.B * batch.T}));
  };
  copy(activations.inputs, batch.inputs);
  copy(activations.targets, batch.targets);
  return {.inputs = activations.inputs,
          .targets = activations.targets,
          .rows = {sequences, {0, batch.T}},
          .step = step,
          .valid_tokens = batch.valid_tokens};
}

MicroBatch tokens_of(const MicroBatch& batch, Part part)
{
  const Range tokens = batch.rows.tokens;
  check(tokens.count % part.count == 0, "the tokens of a sequence cannot be divided equally");
  MicroBatch share = batch;
  share.rows.tokens = {tokens.first + tokens.count / part.count * part.index, tokens.count / part.count};
  share.sixteenths = token_leaves_of(part, batch.sixteenths);
  return share;
}

MicroBatch sequence_of(const MicroBatch& batch, std::int64_t b)
{
  MicroBatch one = batch;
  one.rows.sequences = {batch.rows.sequences.first + b, 1};
  return one;
}

LossSum& LossSum::operator+=(const LossSum& other)
{
  nats += other.nats;
  valid_tokens += other.valid_tokens;
  return *this;
}

Dropout ModelContext::dropout_of(Purpose purpose, std::int64_t unit, const MicroBatch& batch) const
{
  return {.rate = batch.training ? dropout : 0,
          .seed = seed,
          .step = batch.step,
          .layer = unit,
          .purpose = purpose,
          .rows = batch.rows};
}

SumOrder batch_order(const MicroBatch& batch)
{
  return SumOrder::batch(batch.rows.sequences.count, batch.rows.tokens.count, batch.sixteenths);
}

void ModelContext::record(StepPhase phase, std::int64_t unit, Layer layer, const Tensor& values,
                          const MicroBatch& batch, const RecordedColumns& columns) const
{
  if (kernels->recorder() != nullptr && batch.training)
    kernels->recorder()->rows(phase, unit, layer, values, batch.rows, columns);
}

void ModelContext::record_gradient(std::int64_t unit, int number, const Tensor& gradient,
                                   const MicroBatch& batch) const
{
  if (kernels->recorder() != nullptr) kernels->recorder()->gradient(unit, number, gradient, batch.rows, part);
}

namespace {

/// The vocabulary entries that tensor-parallel shard @p part stores, padding included.
Range stored_vocabulary(const ModelConfig& config, Part part)
{
  const std::int64_t stored = config.stored_vocabulary(part.count);
  return {stored * part.index, stored};
}

}  // namespace

// ---- embedding -------------------------------------------------------------------------------------------------

void Embedding::lookup(const Tensor& y, const EmbeddingTensors& p, const MicroBatch& batch) const
{
  context_.kernels->token_forward(y, p.token, batch.inputs, stored_vocabulary(context_.config, context_.part));
}

void Embedding::add(const Tensor& x, const Tensor& y, const EmbeddingTensors& p, const MicroBatch& batch) const
{
  context_.kernels->position_forward(x, y, p.position, batch.rows,
                                     context_.dropout_of(Purpose::embedding_dropout, 0, batch));
  context_.record(StepPhase::forward, 0, Layer::stream, x, batch);
}

void Embedding::backward(const EmbeddingTensors& d, const Tensor& dx, const MicroBatch& batch) const
{
  const Dropout dropout = context_.dropout_of(Purpose::embedding_dropout, 0, batch);
  if (dropout.active()) context_.kernels->dropout(dx, dx, dropout);
  context_.kernels->position_backward(d.position, dx, batch.rows);
  context_.kernels->token_backward(d.token, dx, batch.inputs, stored_vocabulary(context_.config, context_.part),
                                   batch_order(batch));
  context_.record_gradient(0, 1, d.position, batch);
  context_.record_gradient(0, 0, d.token, batch);
}

// ---- branch ----------------------------------------------------------------------------------------------------

AttentionShape Branch::attention_shape(const MicroBatch& batch) const
{
  const std::int64_t heads = context_.config.heads / context_.part.count;
  return {.B = batch.rows.sequences.count,
          .T = batch.rows.tokens.count,
          .heads = {heads * context_.part.index, heads},
          .D = context_.config.head_channels(),
          .mask = context_.config.mask,
          .lengths = batch.lengths};
}

Dropout Branch::attention_dropout(const MicroBatch& batch) const
{
  return context_.dropout_of(Purpose::attention_dropout, unit(), batch);
}

Dropout Branch::residual_dropout(const MicroBatch& batch) const
{
  return context_.dropout_of(Purpose::residual_dropout, unit(), batch);
}

SumOrder Branch::in_order(std::int64_t F) const
{
  return SumOrder::split(F, leaves_of(context_.part), attention() ? 3 : 1);
}

void Branch::normalise(const BranchActivations& a, const BranchTensors& p) const
{
  context_.kernels->norm_forward(a.normalised, a.mean, a.rstd, a.input, p.norm_weight, p.norm_bias);
}

void Branch::query_key_value(const BranchActivations& a, const BranchTensors& p, const MicroBatch& batch) const
{
  const std::int64_t R = batch.rows.count(), C = context_.config.channels;
  context_.kernels->matmul(Matrix::of(a.inner, R), Matrix::of(a.normalised, R), Matrix::of(p.in_weight, C),
                           SumOrder::sequential(C), p.in_bias);
  record_inner(a, batch);
}

void Branch::project(const Tensor& output, const BranchActivations& a, const BranchTensors& p,
                     const MicroBatch& batch) const
{
  const std::int64_t R = batch.rows.count(), hidden_channels = p.out_weight.extent(0);
  context_.kernels->matmul(Matrix::of(output, R), Matrix::of(a.hidden, R),
                           Matrix::of(p.out_weight, hidden_channels),
                           SumOrder::split(hidden_channels, leaves_of(context_.part)));
  context_.record(StepPhase::forward, unit(), Layer::hidden, a.hidden, batch, {context_.part});
}

void Branch::apply(const Tensor& output, const BranchActivations& a, const BranchTensors& p,
                   const MicroBatch& batch) const
{
  const Kernels& kernels = context_.kernels;
  const std::int64_t R = batch.rows.count(), C = context_.config.channels;
  if (attention())
    query_key_value(a, p, batch);
  else
    kernels->matmul_gelu_forward(a.hidden, Matrix::of(a.inner, R), Matrix::of(a.normalised, R),
                                 Matrix::of(p.in_weight, C), SumOrder::sequential(C), p.in_bias);
  if (!attention()) record_inner(a, batch);
  if (attention() && a.cache.empty())
    kernels->attention_forward(a.hidden, a.log_sum_exp, a.inner, attention_shape(batch), attention_dropout(batch));
  else if (attention())
    kernels->cached_attention_forward(a.hidden, a.cache, a.inner, attention_shape(batch), batch.rows.tokens);
  project(output, a, p, batch);
}

void Branch::add(const Tensor& next, const BranchActivations& a, const Tensor& output, const BranchTensors& p,
                 const MicroBatch& batch) const
{
  context_.kernels->residual_forward(next, a.input, output, p.out_bias, residual_dropout(batch));
  context_.record(StepPhase::forward, unit(), Layer::output, output, batch);
  context_.record(StepPhase::forward, unit(), Layer::stream, next, batch);
}

void Branch::record_inner(const BranchActivations& a, const MicroBatch& batch) const
{
  context_.record(StepPhase::forward, unit(), Layer::norm, a.normalised, batch);
  context_.record(StepPhase::forward, unit(), Layer::inner, a.inner, batch, {context_.part, attention() ? 3 : 1});
}

Tensor Branch::output_backward(const Tensor& dx, const Tensor& scratch, const MicroBatch& batch) const
{
  const Dropout dropout = residual_dropout(batch);
  if (!dropout.active()) return dx;
  context_.kernels->dropout(scratch, dx, dropout);
  return scratch;
}

void Branch::out_bias_backward(const BranchTensors& d, const Tensor& doutput, const MicroBatch& batch) const
{
  context_.kernels->bias_backward(d.out_bias, doutput, batch_order(batch));
  context_.record(StepPhase::backward, unit(), Layer::output, doutput, batch);
  context_.record_gradient(unit(), 5, d.out_bias, batch);
}

Tensor Branch::add_backward(const BranchTensors& d, const Tensor& dx, const Tensor& scratch,
                            const MicroBatch& batch) const
{
  const Tensor doutput = output_backward(dx, scratch, batch);
  out_bias_backward(d, doutput, batch);
  return doutput;
}

void Branch::hidden_backward(const Tensor& dhidden, const Tensor& doutput, const BranchTensors& p,
                             const MicroBatch& batch) const
{
  const std::int64_t R = batch.rows.count();
  context_.kernels->matmul(Matrix::of(dhidden, R), Matrix::of(doutput, R),
                           Matrix::of(p.out_weight, p.out_weight.extent(0)).transposed(),
                           SumOrder::sequential(context_.config.channels));
}

void Branch::inner_backward(const Tensor& dinner, const Tensor& dhidden, const Tensor& doutput,
                            const BranchActivations& a, const BranchTensors& p, const MicroBatch& batch) const
{
  const std::int64_t R = batch.rows.count();
  if (!attention()) {
    context_.kernels->matmul_gelu_backward(Matrix::of(dinner, R), Matrix::of(doutput, R),
                                           Matrix::of(p.out_weight, p.out_weight.extent(0)).transposed(),
                                           SumOrder::sequential(context_.config.channels), a.inner);
    return;
  }
  hidden_backward(dhidden, doutput, p, batch);
  context_.kernels->attention_backward(dinner, dhidden, a.hidden, a.log_sum_exp, a.inner, attention_shape(batch),
                                       attention_dropout(batch));
}

void Branch::normalised_backward(const Tensor& dnormalised, const Tensor& dinner, const BranchTensors& p,
                                 const MicroBatch& batch) const
{
  const std::int64_t R = batch.rows.count(), F = p.in_weight.extent(1);
  context_.kernels->matmul(Matrix::of(dnormalised, R), Matrix::of(dinner, R),
                           Matrix::of(p.in_weight, context_.config.channels).transposed(), in_order(F));
}

void Branch::weights_backward(const BranchTensors& d, const Tensor& doutput, const Tensor& dinner,
                              const BranchActivations& a, const MicroBatch& batch) const
{
  const Kernels& kernels = context_.kernels;
  const std::int64_t R = batch.rows.count(), hidden_channels = d.out_weight.extent(0);
  const SumOrder over_batch = batch_order(batch);
  kernels->matmul(Matrix::of(d.out_weight, hidden_channels), Matrix::of(a.hidden, R).transposed(),
                  Matrix::of(doutput, R), over_batch, {}, !d.unwritten);
  kernels->bias_backward(d.in_bias, dinner, over_batch);
  kernels->matmul(Matrix::of(d.in_weight, context_.config.channels), Matrix::of(a.normalised, R).transposed(),
                  Matrix::of(dinner, R), over_batch, {}, !d.unwritten);
  context_.record(StepPhase::backward, unit(), Layer::inner, dinner, batch, {context_.part, attention() ? 3 : 1});
  context_.record_gradient(unit(), 4, d.out_weight, batch);
  context_.record_gradient(unit(), 3, d.in_bias, batch);
  context_.record_gradient(unit(), 2, d.in_weight, batch);
}

void Branch::apply_backward(const Tensor& dnormalised, const BranchTensors& d, const Tensor& doutput,
                            const Tensor& wide, const BranchActivations& a, const BranchTensors& p,
                            const MicroBatch& batch) const
{
  const std::int64_t R = batch.rows.count(), F = p.in_weight.extent(1);
  const std::int64_t first = attention() ? R * p.out_weight.extent(0) : 0;  // after the gradient of a.hidden
  const Tensor dhidden = wide.slice({0, first}), dinner = wide.slice({first, R * F});
  inner_backward(dinner, dhidden, doutput, a, p, batch);
  weights_backward(d, doutput, dinner, a, batch);
  normalised_backward(dnormalised, dinner, p, batch);
}

void Branch::normalise_backward(const Tensor& dx, const BranchTensors& d, const Tensor& dnormalised,
                                const BranchActivations& a, const BranchTensors& p, const MicroBatch& batch) const
{
  context_.kernels->norm_backward(dx, d.norm_weight, d.norm_bias, dnormalised, a.input, a.mean, a.rstd,
                                  p.norm_weight, batch_order(batch));
  context_.record(StepPhase::backward, unit(), Layer::norm, dnormalised, batch);
  context_.record_gradient(unit(), 0, d.norm_weight, batch);
  context_.record_gradient(unit(), 1, d.norm_bias, batch);
  context_.record(StepPhase::backward, unit(), Layer::stream, dx, batch);
}

// ---- head ------------------------------------------------------------------------------------------------------

Range Head::vocabulary() const
{
  return intersect(stored_vocabulary(context_.config, context_.part), {0, context_.config.vocabulary});
}

SumOrder Head::vocabulary_order() const
{
  return SumOrder::split(stored_vocabulary(context_.config, context_.part).count, leaves_of(context_.part));
}

void Head::normalise(const HeadActivations& a, const HeadTensors& p) const
{
  context_.kernels->norm_forward(a.normalised, a.mean, a.rstd, a.input, p.norm_weight, p.norm_bias);
}

void Head::logits(const HeadActivations& a, const HeadTensors& p) const
{
  const std::int64_t R = a.logits.elements() / p.token.extent(0);
  context_.kernels->matmul(Matrix::of(a.logits, R), Matrix::of(a.normalised, R),
                           Matrix::of(p.token, p.token.extent(0)).transposed(),
                           SumOrder::sequential(context_.config.channels));
}

void Head::row_maximum(const HeadActivations& a) const
{
  context_.kernels->row_maximum(a.maximum, a.logits, vocabulary().count);
}

void Head::row_sum(const HeadActivations& a, const MicroBatch& batch) const
{
  context_.kernels->row_sum(a.sum, a.target_logit, a.logits, a.maximum, batch.targets, vocabulary(),
                            vocabulary_order());
  record_logits(a, batch);
}

LossSum Head::loss(const HeadActivations& a, const MicroBatch& batch) const
{
  return {context_.kernels->loss_sum(a.sum, a.maximum, a.target_logit, batch.targets), batch.valid_tokens};
}

LossSum Head::forward(const HeadActivations& a, const HeadTensors& p, const MicroBatch& batch) const
{
  normalise(a, p);
  logits(a, p);
  context_.kernels->row_statistics(a.maximum, a.sum, a.target_logit, a.logits, batch.targets, vocabulary(),
                                   vocabulary_order());
  record_logits(a, batch);
  return loss(a, batch);
}

void Head::logits_backward(const Tensor& dnormalised, const HeadActivations& a, const HeadTensors& p,
                           const MicroBatch& batch) const
{
  const std::int64_t R = batch.rows.count();
  context_.kernels->loss_backward(a.logits, a.maximum, a.sum, batch.targets, vocabulary());
  context_.kernels->matmul(Matrix::of(dnormalised, R), Matrix::of(a.logits, R),
                           Matrix::of(p.token, p.token.extent(0)), vocabulary_order());
  context_.record(StepPhase::backward, unit(), Layer::logits, a.logits, batch,
                  {context_.part, 1, context_.config.vocabulary});
}

void Head::weights_backward(const HeadTensors& d, const HeadActivations& a, const MicroBatch& batch) const
{
  const std::int64_t R = batch.rows.count();
  context_.kernels->matmul(Matrix::of(d.token, d.token.extent(0)), Matrix::of(a.logits, R).transposed(),
                           Matrix::of(a.normalised, R), batch_order(batch), {}, !d.unwritten);
  context_.record_gradient(unit(), -1, d.token, batch);
}

void Head::apply_backward(const Tensor& dnormalised, const HeadTensors& d, const HeadActivations& a,
                          const HeadTensors& p, const MicroBatch& batch) const
{
  logits_backward(dnormalised, a, p, batch);
  weights_backward(d, a, batch);
}

void Head::normalise_backward(const Tensor& dx, const HeadTensors& d, const Tensor& dnormalised,
                              const HeadActivations& a, const HeadTensors& p, const MicroBatch& batch) const
{
  context_.kernels->norm_backward(dx, d.norm_weight, d.norm_bias, dnormalised, a.input, a.mean, a.rstd,
                                  p.norm_weight, batch_order(batch));
  context_.record(StepPhase::backward, unit(), Layer::norm, dnormalised, batch);
  context_.record_gradient(unit(), 0, d.norm_weight, batch);
  context_.record_gradient(unit(), 1, d.norm_bias, batch);
  context_.record(StepPhase::backward, unit(), Layer::stream, dx, batch);
}

void Head::record_logits(const HeadActivations& a, const MicroBatch& batch) const
{
  context_.record(StepPhase::forward, unit(), Layer::norm, a.normalised, batch);
  context_.record(StepPhase::forward, unit(), Layer::logits, a.logits, batch,
                  {context_.part, 1, context_.config.vocabulary});
}

}  // namespace rankwise
