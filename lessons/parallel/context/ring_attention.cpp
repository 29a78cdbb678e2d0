#include "lessons/parallel/context/ring_attention.hpp"

namespace rankwise {

std::int64_t RingSizes::workspace_bytes() const
{
  const std::int64_t results = runs_of_a_rank * SumsOverKeys::kept(arithmetic, runs.count());
  return results * SumsOverKeys::bytes_of_result(config, shape) +
         (arithmetic.continues_tree() ? 0 : TravellingGradients::workspace_bytes(config, shape));
}

std::int64_t RingSizes::message_bytes() const
{
  const std::int64_t block = KeyRing::elements(config, shape);
  const std::int64_t gradients = arithmetic.continues_tree() ? exchanges().front().count : block;
  return 2 * (bytes_of(shape.type) * block + bytes_of(accumulator_of(shape.type)) * gradients);
}

std::vector<CollectiveShape> RingSizes::exchanges() const
{
  if (!arithmetic.continues_tree()) return {};
  return {ReturnedGradients::exchange(config, shape, runs, algorithm)};
}

Traffic RingSizes::passes(bool backward) const
{
  const std::int64_t c = runs.ranks, block = KeyRing::elements(config, shape);
  if (c == 1) return {};
  Traffic sent{c - 1, (c - 1) * block * bytes_of(shape.type)};
  if (backward && !arithmetic.continues_tree()) sent += {c, c * block * bytes_of(accumulator_of(shape.type))};
  return sent;
}

RingAttention::RingAttention(Run& run, const TokenRuns& runs, Group& group)
    : run_(run), runs_(runs), channels_(head_channels_here(run.config, run.shape)), ring_(run, runs, group)
{
  for (std::size_t k = 0; k < TokenRuns::of_a_rank; ++k) of_keys_.emplace_back(run, runs.count());
  if (run.arithmetic.continues_tree())
    gradients_ = std::make_unique<ReturnedGradients>(run, runs, group);
  else
    gradients_ = std::make_unique<TravellingGradients>(run, ring_);
}

std::int64_t RingAttention::pairs(const TokenRun& query, const KeyBlock& block, std::size_t key) const
{
  return visible_pairs(run_.config.mask, runs_.T, query.tokens, runs_.tokens(block.runs[key]));
}

namespace {

/// Sizes of attention over the whole sequence, of which @p batch is a run.
AttentionShape whole_shape(const Branch& branch, const MicroBatch& batch, std::int64_t T)
{
  AttentionShape shape = branch.attention_shape(batch);
  shape.T = T;
  return shape;
}

}  // namespace

void RingAttention::forward(const Branch& branch, std::size_t i, std::span<TokenRun> own)
{
  // BEGIN EXERCISE 14.1
  const Kernels& kernels = run_.kernels;
  const auto merge = [&](const SoftmaxPartial& a, const SoftmaxPartial& b) { kernels->attention_merge(a, b); };
  for (SumsOverKeys& sums : of_keys_) sums.begin();
  KeyBlock block = ring_.begin(own, i);
  for (int hop = 0; hop < ring_.ranks(); ++hop) {
    // The block travels on while this rank's queries meet it.
    Pending passing = ring_.pass_on(block);
    for (std::size_t q = 0; q < own.size(); ++q)
      for (std::size_t k = 0; k < block.kv.size(); ++k) {
        // A run of keys after the last query, which a causal mask hides, costs nothing.
        const std::int64_t seen = pairs(own[q], block, k);
        if (seen == 0) continue;
        const MicroBatch& batch = own[q].batch;
        kernels->attention_partial(of_keys_[q].next(block.runs[k]), own[q].kept.branches[i].inner, block.kv[k],
                                   whole_shape(branch, batch, runs_.T),
                                   {own[q].tokens, runs_.tokens(block.runs[k])}, branch.attention_dropout(batch));
        of_keys_[q].added(merge);
        run_.charge_flops(attention_flops(batch.rows.sequences.count * seen, channels_), "attention");
      }
    passing.wait();
    block = ring_.next(block);
  }
  // The soft-max is divided once, when its sum is over all keys.
  for (std::size_t q = 0; q < own.size(); ++q) {
    const BranchActivations& a = own[q].kept.branches[i];
    kernels->attention_divide(a.hidden, a.log_sum_exp, of_keys_[q].total(merge));
  }
  // END EXERCISE
}

void RingAttention::backward(const Branch& branch, std::size_t i, std::span<TokenRun> own)
{
  const Kernels& kernels = run_.kernels;
  const auto add = [&](const SoftmaxPartial& a, const SoftmaxPartial& b) { kernels->add(a.output, b.output); };
  for (SumsOverKeys& sums : of_keys_) sums.begin();
  gradients_->begin();
  // BEGIN TWIN 14.1
  KeyBlock block = ring_.begin(own, i);
  for (int hop = 0; hop < ring_.ranks(); ++hop) {
    Pending passing = ring_.pass_on(block);
    for (std::size_t q = 0; q < own.size(); ++q)
      for (std::size_t k = 0; k < block.kv.size(); ++k) {
        const std::int64_t seen = pairs(own[q], block, k);
        if (seen == 0) continue;
        // Each pair of runs gives a gradient of its queries, which stay here, and one of its keys and values.
        const BranchActivations& a = own[q].kept.branches[i];
        const MicroBatch& batch = own[q].batch;
        kernels->attention_partial_backward(
            of_keys_[q].next(block.runs[k]).output, gradients_->next(block, q, k), own[q].dhidden(), a.hidden,
            a.log_sum_exp, a.inner, block.kv[k], whole_shape(branch, batch, runs_.T),
            {own[q].tokens, runs_.tokens(block.runs[k])}, branch.attention_dropout(batch));
        of_keys_[q].added(add);
        gradients_->added(block, q, k);
        run_.charge_flops(2 * attention_flops(batch.rows.sequences.count * seen, channels_), "attention backward");
      }
    gradients_->finished(block);
    passing.wait();
    block = ring_.next(block);
  }
  // END TWIN
  // Sums that are complete are rounded to the type of q, k and v.
  const std::array<Tensor, TokenRuns::of_a_rank> of_keys = gradients_->total();
  const std::int64_t R = run_.shape.rows(), C = channels_;
  for (std::size_t q = 0; q < own.size(); ++q) {
    const Tensor dinner = own[q].dinner();
    kernels->copy({dinner, R, C, 3 * C}, Matrix::of(of_keys_[q].total(add).output, R));
    kernels->copy({dinner.slice({C, dinner.elements() - C}), R, 2 * C, 3 * C}, Matrix::of(of_keys[q], R));
  }
}

}  // namespace rankwise
