#pragma once

#include <cstdint>
#include <vector>

#include "data/pair_loader.hpp"
#include "gpt2/bert/activations.hpp"
#include "gpt2/bert/parameters.hpp"
#include "gpt2/model.hpp"

/// @file
/// A BERT for pre-training as a chain of residual branches, with the pieces of model.hpp where they are the same.
///
///     embedding -> norm(x + attention(x)) -> norm(x + mlp(x)) -> ... (2 L branches) -> two outputs
///
/// The norm stands after the sum (post-norm), attention sees all keys before the padding, and the head predicts the
/// masked tokens and whether the second sentence follows the first. GELU is the tanh approximation, as in the code
/// that was published with the paper.
///
/// @source  Devlin et al. 2018, section 3 and appendix A; Vaswani et al. 2017, section 3.1, for post-norm.

namespace rankwise {

/// The epsilon that BERT's norms add to the variance.
constexpr double bert_norm_epsilon = 1e-12;

/// A micro-batch of pairs of sentences on the device; `targets` are -1 but for masked tokens.
struct PairMicroBatch : MicroBatch {
  Tensor segments;         ///< (R) i32
  Tensor labels;           ///< (B) i32
  std::int64_t pairs = 0;  ///< number of labels that are counted
  double pair_weight = 0;  ///< weight of a pair's loss beside a masked token's, see BertLoss
};

/// Copies a batch of the loader to the device.
/// @param activations  holds the tensors for it.
/// @param sequences    its sequences in the global batch.
/// @param step         optimizer step.
PairMicroBatch place(const BertActivations& activations, Stream& stream, const PairBatch& batch, Range sequences,
                     std::int64_t step);

/// Two sums of losses. The loss of a step is the sum of their means. Gradients are divided once, by the number of
/// masked tokens, so those of a pair are computed with the weight (masked tokens / pairs) of the whole global batch.
struct BertLoss {
  LossSum tokens;  ///< cross-entropy of the masked tokens
  LossSum pairs;   ///< cross-entropy of the next-sentence labels

  /// Mean loss of a masked token plus that of a pair, in nats.
  double mean() const { return tokens.mean() + pairs.mean(); }
  /// Adds another pair of sums.
  BertLoss& operator+=(const BertLoss& other);
};

/// Unit 0: x = dropout(norm(token[t] + position[i] + segment[s])).
class BertEmbedding {
 public:
  /// @param context  settings that all building blocks share.
  /// @param stream   stream of the kernels.
  BertEmbedding(const ModelContext& context, Stream& stream) : context_(context), stream_(stream) {}

  /// Computes x, (R, C), the rows that enter the first branch.
  /// @param scratch  (R, C).
  void forward(const Tensor& x, const Tensor& scratch, const BertActivations& a, const BertEmbeddingTensors& p,
               const PairMicroBatch& batch) const;
  /// Adds the gradients to @p d. Needs no parameter: the norm's weight was kept.
  /// @param dx       (R, C) gradient of x; is overwritten.
  /// @param scratch  (R, C).
  void backward(const BertEmbeddingTensors& d, const Tensor& dx, const Tensor& scratch, const BertActivations& a,
                const PairMicroBatch& batch) const;

 private:
  ModelContext context_;
  Stream& stream_;
};

/// Unit 1 + i: norm(x + branch(x)), with the matrices of GPT-2's Branch. The rows x that enter are a.normalised, because
/// the branch before has normalised them; the sum that this branch's norm reads is a.input.
class BertBranch {
 public:
  /// @param context  settings that all building blocks share.
  /// @param stream   stream of the kernels.
  /// @param index    i, 0 .. 2 L - 1.
  BertBranch(const ModelContext& context, Stream& stream, int index)
      : branch_(context, index), context_(context), stream_(stream)
  {
  }

  /// Its unit in the parameter table.
  int unit() const { return branch_.unit(); }
  /// Computes a.input = x + dropout(branch(x)) and next = norm(a.input), (R, C), from x = a.normalised.
  /// @param scratch  (R, C).
  void forward(const Tensor& next, const Tensor& scratch, const BranchActivations& a, const BranchTensors& p,
               const PairMicroBatch& batch) const;
  /// Turns dx (R, C), the gradient of next, into that of x, and adds the gradients of the parameters to @p d.
  /// @param dsum  (R, C) scratch.
  /// @param wide  (R 4 C) scratch.
  void backward(const Tensor& dx, const BranchTensors& d, const Tensor& dsum, const Tensor& wide,
                const BranchActivations& a, const BranchTensors& p, const PairMicroBatch& batch) const;

 private:
  Branch branch_;
  ModelContext context_;
  Stream& stream_;
};

/// Unit 2 L + 1: the outputs for masked tokens and for the next sentence, and their losses.
class BertHead {
 public:
  /// @param context  settings that all building blocks share.
  /// @param stream   stream of the kernels.
  BertHead(const ModelContext& context, Stream& stream) : context_(context), stream_(stream) {}

  /// Both losses from a.head.input, (R, C).
  BertLoss forward(const BertActivations& a, const BertHeadTensors& p, const PairMicroBatch& batch) const;
  /// Number of wrong predictions after forward(), beside the number of all; a tie counts as right. The means of the two
  /// sums are error rates.
  BertLoss errors(const BertActivations& a, const PairMicroBatch& batch) const;
  /// Computes dx (R, C), the gradient of a.head.input, and adds the gradients of the parameters to @p d.
  /// @param scratch  (R, C).
  void backward(const Tensor& dx, const Tensor& scratch, const BertHeadTensors& d, const BertActivations& a,
                const BertHeadTensors& p, const PairMicroBatch& batch) const;

 private:
  BertLoss loss(const BertActivations& a, const PairMicroBatch& batch) const;
  void tokens_backward(const Tensor& dx, const Tensor& scratch, const BertHeadTensors& d, const BertActivations& a,
                       const BertHeadTensors& p, const PairMicroBatch& batch) const;
  void pairs_backward(const Tensor& dx, const Tensor& dpooled, const BertHeadTensors& d, const BertActivations& a,
                      const BertHeadTensors& p, const PairMicroBatch& batch) const;
  Range vocabulary() const { return {0, context_.config.vocabulary}; }
  SumOrder vocabulary_order() const
  {
    return SumOrder::split(context_.config.padded_vocabulary(), leaves_of_a_split_sum);
  }

  ModelContext context_;
  Stream& stream_;
};

/// The whole chain. It holds no parameters: they are passed in, so that a lesson decides where they are stored.
struct BertModel {
  /// @param context  settings that the building blocks share; the kernels outlive the model.
  /// @param stream   stream of the kernels; outlives the model.
  BertModel(const ModelContext& context, Stream& stream);

  BertEmbedding embedding;           ///< unit 0
  std::vector<BertBranch> branches;  ///< units 1 .. 2 L
  BertHead head;                     ///< unit 2 L + 1
};

/// Forward and backward pass of the whole chain on one device; adds the gradients of the sum of losses to @p d.
/// @param table   a table of all units without replicated tensors.
/// @param p, d    flat vectors of parameters and gradients, (table.elements()).
/// @param d_tied  separate sum for the head's gradient of the token embedding, (V C), or empty.
BertLoss forward_backward(const BertModel& model, const ParameterTable& table, const Tensor& p, const Tensor& d,
                          const Tensor& d_tied, const BertActivations& kept, const Workspace& work,
                          const PairMicroBatch& batch);

}  // namespace rankwise
