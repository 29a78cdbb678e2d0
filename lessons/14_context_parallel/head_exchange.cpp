#include "lessons/14_context_parallel/head_exchange.hpp"

#include "common/collectives/collectives.hpp"

namespace rankwise {

namespace {

/// Sections of a row of q, k and v.
constexpr std::int64_t qkv_sections = 3;

}  // namespace

HeadExchange::HeadExchange(Run& run, const TokenRuns& runs, Group& group) : run_(run), runs_(runs), group_(group)
{
  // B sequences of all their T tokens, of 1 / c of the channels and heads: as much as the rank's T / c tokens of all heads.
  const ActivationShape& shape = run.shape;
  const std::int64_t B = shape.B, T = runs.T, C = run.config.channels / runs.ranks,
                     H = run.config.heads / runs.ranks;
  const auto make = [&](Category category, DType type, const Shape& extents, const char* what) {
    return Buffer(run.memory, category, type, extents, what);
  };
  // Every layer keeps its results for the backward pass; with recomputation it makes them again, in the same place.
  const std::int64_t layers = shape.recompute ? 1 : run.config.layers;
  for (std::int64_t i = 0; i < layers; ++i)
    kept_.push_back({make(Category::activations, shape.type, {B, T, qkv_sections * C}, "q, k, v of some heads"),
                     make(Category::activations, shape.type, {B, T, C}, "outputs of some heads"),
                     make(Category::activations, accumulator_of(shape.type), {B, H, T}, "log-sum-exp")});
  // Gradients are needed while a layer's backward pass lasts, and so is the memory for what is exchanged, at most q, k and v.
  dy_ = make(Category::workspace, shape.type, {B, T, C}, "gradient of some heads' outputs");
  dqkv_ = make(Category::workspace, shape.type, {B, T, qkv_sections * C}, "gradient of some heads' q, k, v");
  for (Buffer* buffer : {&sent_, &received_})
    *buffer = make(Category::communication, shape.type, {B * T * qkv_sections * C}, "heads on their way");
}

void HeadExchange::forward(const Branch& branch, std::size_t i, std::span<TokenRun> own)
{
  const Heads& heads = heads_of(i);
  std::vector<Tensor> inner, hidden;
  for (const TokenRun& mine : own) {
    inner.push_back(mine.kept.branches[i].inner);
    hidden.push_back(mine.kept.branches[i].hidden);
  }
  // From all heads of this rank's tokens to all tokens of its heads, q, k and v, (B, T, 3 C / c).
  to_heads(heads.qkv.tensor(), inner);
  // Now attention is that of a single device with H / c heads; dropout is that of these heads, whichever rank has them.
  const MicroBatch batch = whole(own.front().batch);
  run_.kernels->attention_forward(heads.y.tensor(), heads.log_sum_exp.tensor(), heads.qkv.tensor(),
                                  shape_of(branch, batch), branch.attention_dropout(batch));
  charge(1, "attention");
  // Back to all heads of this rank's tokens: the outputs only, a third as much.
  to_tokens(hidden, heads.y.tensor());
}

void HeadExchange::backward(const Branch& branch, std::size_t i, std::span<TokenRun> own)
{
  const Heads& heads = heads_of(i);
  std::vector<Tensor> dhidden, dinner;
  for (const TokenRun& mine : own) {
    dhidden.push_back(mine.dhidden());
    dinner.push_back(mine.dinner());
  }
  // The same way backwards: the gradients of outputs become those of heads, (B, T, C / c).
  to_heads(dy_.tensor(), dhidden);
  const MicroBatch batch = whole(own.front().batch);
  run_.kernels->attention_backward(dqkv_.tensor(), dy_.tensor(), heads.y.tensor(), heads.log_sum_exp.tensor(),
                                   heads.qkv.tensor(), shape_of(branch, batch), branch.attention_dropout(batch));
  charge(2, "attention backward");
  // The gradients of q, k and v, (B, T, 3 C / c), go back to the tokens that they belong to.
  to_tokens(dinner, dqkv_.tensor());
}

/// The columns of the heads of rank @p rank, in section @p s of a tensor (R, n C).
Matrix HeadExchange::columns(const Tensor& all, std::int64_t s, int rank) const
{
  const std::int64_t R = run_.shape.rows(), C = run_.config.channels, width = all.elements() / R;
  const std::int64_t first = s * C + rank * (C / runs_.ranks);
  return {all.slice({first, all.elements() - first}), R, C / runs_.ranks, width};
}

/// What is exchanged of run @p k with rank @p rank: section @p s of a tensor (R, n C / c).
Matrix HeadExchange::exchanged(const Tensor& all, std::int64_t s, int rank, std::size_t k) const
{
  const std::int64_t R = run_.shape.rows(), C = run_.config.channels / runs_.ranks;
  const std::int64_t block = all.elements() / runs_.count(), first = block_of(rank, k) * block + s * C;
  return {all.slice({first, all.elements() - first}), R, C, block / R};
}

void HeadExchange::to_heads(const Tensor& of_heads, const std::vector<Tensor>& of_runs)
{
  // BEGIN EXERCISE 14.2
  const Tensor sent = sent_.tensor().slice({0, of_heads.elements()}),
               received = received_.tensor().slice({0, of_heads.elements()});
  for_each_section(of_runs, [&](std::size_t k, std::int64_t s, int rank) {
    run_.kernels->copy(exchanged(sent, s, rank, k), columns(of_runs[k], s, rank));
  });
  all_to_all(sent, received, group_);
  for_each_piece(of_heads, received,
                 [&](const Tensor& heads, const Tensor& piece) { run_.stream->copy(heads, piece); });
  // END EXERCISE
}

void HeadExchange::to_tokens(const std::vector<Tensor>& of_runs, const Tensor& of_heads)
{
  // to_heads() in reverse: the pieces of all runs, one all-to-all, and the sections of this rank's runs.
  const Tensor sent = sent_.tensor().slice({0, of_heads.elements()}),
               received = received_.tensor().slice({0, of_heads.elements()});
  for_each_piece(of_heads, sent,
                 [&](const Tensor& heads, const Tensor& piece) { run_.stream->copy(piece, heads); });
  all_to_all(sent, received, group_);
  for_each_section(of_runs, [&](std::size_t k, std::int64_t s, int rank) {
    run_.kernels->copy(columns(of_runs[k], s, rank), exchanged(received, s, rank, k));
  });
}

/// Calls use(run of this rank, section, rank whose heads these are).
void HeadExchange::for_each_section(const std::vector<Tensor>& of_runs,
                                    const std::function<void(std::size_t, std::int64_t, int)>& use) const
{
  const std::int64_t sections = of_runs.front().elements() / (run_.shape.rows() * run_.config.channels);
  for (std::size_t k = 0; k < of_runs.size(); ++k)
    for (std::int64_t s = 0; s < sections; ++s)
      for (int rank = 0; rank < runs_.ranks; ++rank) use(k, s, rank);
}

/// Calls use(tokens of some heads, (T / 2 c, n C / c), the same rows among those exchanged) for all runs of all ranks.
void HeadExchange::for_each_piece(const Tensor& of_heads, const Tensor& exchanged,
                                  const std::function<void(const Tensor&, const Tensor&)>& use) const
{
  const std::int64_t B = run_.shape.B, width = of_heads.elements() / (B * runs_.T), piece = runs_.length() * width;
  for (int rank = 0; rank < runs_.ranks; ++rank)
    for (std::size_t k = 0; k < TokenRuns::of_a_rank; ++k)
      for (std::int64_t b = 0; b < B; ++b) {
        const std::int64_t token = b * runs_.T + runs_.tokens(runs_.of(rank)[k]).first;
        use(of_heads.slice({token * width, piece}), exchanged.slice({(block_of(rank, k) * B + b) * piece, piece}));
      }
}

/// The micro-batch with all tokens of its sequences.
MicroBatch HeadExchange::whole(MicroBatch batch) const
{
  batch.rows.tokens = {0, runs_.T};
  return batch;
}

AttentionShape HeadExchange::shape_of(const Branch& branch, const MicroBatch& batch) const
{
  AttentionShape shape = branch.attention_shape(batch);
  const std::int64_t heads = run_.config.heads / runs_.ranks;
  shape.heads = {group_.rank() * heads, heads};
  return shape;
}

/// Advances the virtual clock by the pairs of all tokens that the mask leaves, in C / c channels.
void HeadExchange::charge(std::int64_t passes, const char* what)
{
  const Range all{0, runs_.T};
  const std::int64_t pairs = run_.shape.B * visible_pairs(run_.config.mask, runs_.T, all, all);
  run_.charge_flops(passes * attention_flops(pairs, run_.config.channels / runs_.ranks), what);
}

std::int64_t HeadExchange::kept_bytes(const ModelConfig& config, const ActivationShape& shape,
                                      const TokenRuns& runs)
{
  const std::int64_t tokens = shape.B * runs.T / runs.ranks, layers = shape.recompute ? 1 : config.layers;
  return layers * tokens *
         ((qkv_sections + 1) * config.channels * bytes_of(shape.type) +
          config.heads * bytes_of(accumulator_of(shape.type)));
}

std::int64_t HeadExchange::workspace_bytes(const ModelConfig& config, const ActivationShape& shape,
                                           const TokenRuns& runs)
{
  return bytes_of(shape.type) * (qkv_sections + 1) * shape.B * runs.T / runs.ranks * config.channels;
}

CollectiveShape HeadExchange::exchange(const ModelConfig& config, const ActivationShape& shape, Algorithm algorithm,
                                       std::int64_t sections)
{
  return {"all-to-all", algorithm, shape.type, sections * runs_of_a_rank * shape.rows() * config.channels};
}

}  // namespace rankwise
