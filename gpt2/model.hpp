#pragma once

#include <cstdint>
#include <vector>

#include "common/base/exact_scalar.hpp"
#include "data/loader.hpp"
#include "gpt2/activations.hpp"
#include "gpt2/config.hpp"
#include "gpt2/kernels/kernels.hpp"
#include "gpt2/parameter_table.hpp"

/// @file
/// A GPT-2 as a chain of residual branches: the pieces that a lesson calls in order.
///
///     embedding -> x + attention(norm(x)) -> x + mlp(norm(x)) -> ... (2 L branches) -> head
///
/// A piece computes and nothing else: it sends no message and owns no memory. What has to be added up over the parts
/// of a divided layer lies open between two calls.

namespace rankwise {

/// A micro-batch on the device.
struct MicroBatch {
  Tensor inputs;                                 ///< (R) i32 tokens
  Tensor targets;                                ///< (R) i32 tokens, -1 where nothing is counted
  Rows rows{};                                   ///< which sequences of the global batch these are
  std::int64_t step = 0;                         ///< optimizer step; keys dropout
  bool training = true;                          ///< whether dropout applies
  std::int64_t valid_tokens = 0;                 ///< targets that are counted
  std::int64_t eighths = leaves_of_a_split_sum;  ///< of a sequence, which its tokens are: leaves of sums over them
};

/// The rows of @p batch of whoever has one of several equal parts of each sequence. Inputs and targets stay those of all.
MicroBatch tokens_of(const MicroBatch& batch, Part part);
/// The rows of sequence @p b of @p batch, counted from its first.
MicroBatch sequence_of(const MicroBatch& batch, std::int64_t b);

/// Puts a batch of the loader into the tensors that @p activations keeps for it: those of the units that are there.
/// @param activations  of batch.B T rows.
/// @param batch        from the loader.
/// @param sequences    which sequences of the global batch it is.
/// @param step         optimizer step.
MicroBatch place(const Activations& activations, Stream& stream, const Batch& batch, Range sequences,
                 std::int64_t step);

/// A sum of losses and the number of tokens that they are of; both are added up before they are divided.
struct LossSum {
  ExactScalar nats;               ///< the sum of cross-entropies
  std::int64_t valid_tokens = 0;  ///< how many

  /// Nats a token.
  double mean() const { return nats.value() / static_cast<double>(valid_tokens); }
  /// The sum of two sums.
  LossSum& operator+=(const LossSum& other);
};

/// What all pieces of a model share.
struct ModelContext {
  ModelConfig config;        ///< the sizes
  const Kernels* kernels{};  ///< the arithmetic
  Part part{};               ///< which part of divided layers this model computes
  double dropout = 0;        ///< rate of all three dropouts
  std::uint32_t seed = 0;    ///< of their masks

  /// The mask of one dropout in one unit; inactive outside training.
  Dropout dropout_of(Purpose purpose, std::int64_t unit, const MicroBatch& batch) const;
};

/// Unit 0: x = dropout(wte[token] + wpe[position]).
class Embedding {
 public:
  /// @param context  what all pieces share.
  explicit Embedding(const ModelContext& context) : context_(context) {}

  /// y = wte[token], (R, C): a partial sum when the vocabulary is divided.
  void lookup(const Tensor& y, const EmbeddingTensors& p, const MicroBatch& batch) const;
  /// x = dropout(y + wpe[position]), (R, C).
  void add(const Tensor& x, const Tensor& y, const EmbeddingTensors& p, const MicroBatch& batch) const;
  /// d.token and d.position += the gradient; dx, (R, C), is used up.
  void backward(const EmbeddingTensors& d, const Tensor& dx, const MicroBatch& batch) const;

 private:
  ModelContext context_;
};

/// Unit 1 + i: x + branch(norm(x)). Even branches are attention, odd ones the MLP.
///
///     forward    normalise:  normalised = norm(input)
///                apply:      output = g(normalised in_weight + in_bias) out_weight      a partial sum when divided
///                add:        next = input + dropout(output + out_bias)
///     backward   the same three, last first
///
/// g is attention over q, k, v, or GELU.
class Branch {
 public:
  /// @param context  what all pieces share.
  /// @param index    i, 0 .. 2 L - 1.
  Branch(const ModelContext& context, int index) : context_(context), index_(index) {}

  /// Whether it is attention.
  bool attention() const { return index_ % 2 == 0; }
  /// Its unit in the parameter table.
  int unit() const { return 1 + index_; }

  /// a.normalised from a.input.
  void normalise(const BranchActivations& a, const BranchTensors& p) const;
  /// output (R, C) from a.normalised; fills a.inner, a.hidden, a.log_sum_exp. With a.cache the rows are tokens of one
  /// sequence that attend to those before them too, and the cache receives theirs.
  void apply(const Tensor& output, const BranchActivations& a, const BranchTensors& p,
             const MicroBatch& batch) const;
  /// next (R, C) from a.input and output.
  void add(const Tensor& next, const BranchActivations& a, const Tensor& output, const BranchTensors& p,
           const MicroBatch& batch) const;

  /// The gradient of output, from dx (R, C), that of the residual stream behind the branch.
  /// @return  dx itself without dropout, else @p scratch (R, C).
  Tensor output_backward(const Tensor& dx, const Tensor& scratch, const MicroBatch& batch) const;
  /// output_backward(), and d.out_bias += its own.
  Tensor add_backward(const BranchTensors& d, const Tensor& dx, const Tensor& scratch,
                      const MicroBatch& batch) const;
  /// dinner (R, F / n), the gradient of a.inner.
  /// @param dhidden  (R, C / n) scratch, for attention.
  void inner_backward(const Tensor& dinner, const Tensor& dhidden, const Tensor& doutput,
                      const BranchActivations& a, const BranchTensors& p, const MicroBatch& batch) const;
  /// dnormalised (R, C), a partial sum when divided.
  void normalised_backward(const Tensor& dnormalised, const Tensor& dinner, const BranchTensors& p,
                           const MicroBatch& batch) const;
  /// The gradients of the two matrices and of in_bias, which nothing else waits for, are added to @p d.
  void weights_backward(const BranchTensors& d, const Tensor& doutput, const Tensor& dinner,
                        const BranchActivations& a, const MicroBatch& batch) const;
  /// d.out_bias += its gradient.
  void out_bias_backward(const BranchTensors& d, const Tensor& doutput, const MicroBatch& batch) const;
  /// inner_backward(), weights_backward(), normalised_backward().
  /// @param dnormalised  may be @p doutput.
  /// @param doutput      from add_backward().
  /// @param wide         (R 4 C / n) scratch.
  void apply_backward(const Tensor& dnormalised, const BranchTensors& d, const Tensor& doutput, const Tensor& wide,
                      const BranchActivations& a, const BranchTensors& p, const MicroBatch& batch) const;
  /// dx += the gradient of the branch's input; gradients of the norm are added to @p d.
  void normalise_backward(const Tensor& dx, const BranchTensors& d, const Tensor& dnormalised,
                          const BranchActivations& a, const BranchTensors& p, const MicroBatch& batch) const;

 private:
  AttentionShape attention_shape(const MicroBatch& batch) const;
  Dropout attention_dropout(const MicroBatch& batch) const;
  Dropout residual_dropout(const MicroBatch& batch) const;
  SumOrder in_order(std::int64_t F) const;

  ModelContext context_;
  int index_;
};

/// Unit 2 L + 1: the last norm, the logits, the loss. Soft-max over a divided vocabulary needs a maximum, then a sum and
/// the target's logit, over the parts: row_maximum(), row_sum(), loss() are what lies between those messages.
class Head {
 public:
  /// @param context  what all pieces share.
  explicit Head(const ModelContext& context) : context_(context) {}

  /// a.normalised from a.input.
  void normalise(const HeadActivations& a, const HeadTensors& p) const;
  /// a.logits from a.normalised.
  void logits(const HeadActivations& a, const HeadTensors& p) const;
  /// a.maximum of this part's logits.
  void row_maximum(const HeadActivations& a) const;
  /// a.sum and a.target_logit of this part's logits, given the maximum of all.
  void row_sum(const HeadActivations& a, const MicroBatch& batch) const;
  /// The sum of losses, given the sums of all parts.
  LossSum loss(const HeadActivations& a, const MicroBatch& batch) const;

  /// a.logits become their gradient; dnormalised (R, C) is a partial sum when divided.
  void logits_backward(const Tensor& dnormalised, const HeadActivations& a, const HeadTensors& p,
                       const MicroBatch& batch) const;
  /// d.token += the embedding's gradient, from that of the logits.
  void weights_backward(const HeadTensors& d, const HeadActivations& a, const MicroBatch& batch) const;
  /// Both of them.
  void apply_backward(const Tensor& dnormalised, const HeadTensors& d, const HeadActivations& a,
                      const HeadTensors& p, const MicroBatch& batch) const;
  /// dx (R, C) += the gradient of the head's input; gradients of the norm are added to @p d.
  void normalise_backward(const Tensor& dx, const HeadTensors& d, const Tensor& dnormalised,
                          const HeadActivations& a, const HeadTensors& p, const MicroBatch& batch) const;

  /// normalise() ... loss() in order, for a head that is whole.
  LossSum forward(const HeadActivations& a, const HeadTensors& p, const MicroBatch& batch) const;

 private:
  Range vocabulary() const;
  SumOrder vocabulary_order() const;

  ModelContext context_;
};

/// The chain, or a run of its units. It holds no parameters: they are passed in, so that a lesson decides where they are.
struct Model {
  /// @param context  what the pieces share; the kernels outlive the model.
  /// @param units    whose branches; all by default.
  explicit Model(const ModelContext& context, Range units = {0, -1});

  ModelContext context;          ///< what the pieces share
  Embedding embedding;           ///< unit 0
  std::vector<Branch> branches;  ///< units 1 .. 2 L, those of the run
  Head head;                     ///< unit 2 L + 1
};

/// Forward pass of the whole chain without any message.
/// @return  the sum of losses over the micro-batch.
LossSum forward(const Model& model, const ModelTensors& p, const Activations& kept, const Workspace& work,
                const MicroBatch& batch);

/// Forward and backward pass of the whole chain without any message; the gradients of the sum of losses are added to
/// @p d. Under recomputation (work.block is there) each block's forward pass runs again before its backward pass.
LossSum forward_backward(const Model& model, const ModelTensors& p, const ModelTensors& d, const Activations& kept,
                         const Workspace& work, Stream& stream, const MicroBatch& batch);

}  // namespace rankwise
