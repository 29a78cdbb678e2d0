#pragma once

#include <cstdint>
#include <vector>

#include "common/base/exact_scalar.hpp"
#include "data/loader.hpp"
#include "gpt2/activations.hpp"
#include "gpt2/config.hpp"
#include "gpt2/kernels/kernels.hpp"
#include "gpt2/parameter_table.hpp"
#include "gpt2/record/recorder.hpp"

/// @file
/// A GPT-2 as a chain of residual branches: the building blocks that a lesson calls in order.
///
///     embedding -> x + attention(norm(x)) -> x + mlp(norm(x)) -> ... (2 L branches) -> head
///
/// A building block only computes: it sends no message and owns no memory. Where the partial results of the
/// tensor-parallel ranks have to be summed, the computation is two calls, and the caller sums between them.

namespace rankwise {

/// A micro-batch on the device.
struct MicroBatch {
  Tensor inputs;                                   ///< (R) i32 tokens
  Tensor targets;                                  ///< (R) i32 tokens, -1 where nothing is counted
  Rows rows{};                                     ///< its sequences and tokens in the global batch
  std::int64_t step = 0;                           ///< optimizer step; keys the dropout masks
  bool training = true;                            ///< true if dropout applies
  std::int64_t valid_tokens = 0;                   ///< number of targets that are counted
  std::int64_t sixteenths = leaves_of_a_sequence;  ///< sixteenths of each sequence that its tokens make up
  Tensor lengths{};  ///< (B) i32 tokens of each sequence before its padding; empty: all T
};

/// The order of sums over the rows of a micro-batch.
SumOrder batch_order(const MicroBatch& batch);

/// The rows of @p batch that belong to @p part, one of several equal parts of each sequence. Inputs and targets
/// remain those of the whole sequences.
MicroBatch tokens_of(const MicroBatch& batch, Part part);
/// The rows of sequence @p b of @p batch, counted from its first.
MicroBatch sequence_of(const MicroBatch& batch, std::int64_t b);

/// Copies a batch of the loader to the device: inputs for the embedding, targets for the head, each where that unit
/// is computed here.
/// @param activations  holds the tensors for it, of batch.B T rows.
/// @param batch        from the loader.
/// @param sequences    its sequences in the global batch.
/// @param step         optimizer step.
MicroBatch place(const Activations& activations, Stream& stream, const Batch& batch, Range sequences,
                 std::int64_t step);

/// A sum of losses and its number of tokens. Both are summed over micro-batches and ranks before they are divided.
struct LossSum {
  ExactScalar nats;               ///< sum of the cross-entropies
  std::int64_t valid_tokens = 0;  ///< number of tokens in the sum

  /// Mean loss in nats per token.
  double mean() const { return nats.value() / static_cast<double>(valid_tokens); }
  /// Adds another sum.
  LossSum& operator+=(const LossSum& other);
};

/// Settings that all building blocks of a model share.
struct ModelContext {
  ModelConfig config;        ///< sizes
  Kernels kernels;           ///< kernels that do the arithmetic
  Part part{};               ///< tensor-parallel shard that this model computes
  double dropout = 0;        ///< rate of all three dropouts
  std::uint32_t seed = 0;    ///< seed of the dropout masks
  Stream* stream = nullptr;  ///< stream of the kernels; only for a model with experts, whose rows the host counts

  /// The mask of one dropout layer in one unit; inactive outside training.
  Dropout dropout_of(Purpose purpose, std::int64_t unit, const MicroBatch& batch) const;

  /// With --record: notes rows that a layer has computed, which are nothing of validation.
  void record(StepPhase phase, std::int64_t unit, Layer layer, const Tensor& values, const MicroBatch& batch,
              const RecordedColumns& columns = {}) const;
  /// With --record: notes the gradient of a tensor; see Recorder::gradient().
  void record_gradient(std::int64_t unit, int number, const Tensor& gradient, const MicroBatch& batch) const;
};

/// Unit 0: x = dropout(wte[token] + wpe[position]).
class Embedding {
 public:
  /// @param context  settings that all building blocks share.
  explicit Embedding(const ModelContext& context) : context_(context) {}

  /// y = wte[token], (R, C): a partial sum when the vocabulary is sharded.
  void lookup(const Tensor& y, const EmbeddingTensors& p, const MicroBatch& batch) const;
  /// x = dropout(y + wpe[position]), (R, C).
  void add(const Tensor& x, const Tensor& y, const EmbeddingTensors& p, const MicroBatch& batch) const;
  /// d.token and d.position += the gradient; dx, (R, C), is overwritten.
  void backward(const EmbeddingTensors& d, const Tensor& dx, const MicroBatch& batch) const;

 private:
  ModelContext context_;
};

/// Unit 1 + i: x + branch(norm(x)). Even branches are attention, odd ones the MLP.
///
///     forward    normalise:  normalised = norm(input)
///                apply:      output = g(normalised in_weight + in_bias) out_weight      a partial sum when sharded
///                add:        next = input + dropout(output + out_bias)
///     backward   the same three in reverse order
///
/// g is attention over q, k, v, or GELU.
class Branch {
 public:
  /// @param context  settings that all building blocks share.
  /// @param index    i, 0 .. 2 L - 1.
  Branch(const ModelContext& context, int index) : context_(context), index_(index) {}

  /// True if this is an attention branch.
  bool attention() const { return index_ % 2 == 0; }
  /// True if an ExpertLayer computes it, in place of apply() and apply_backward(). It adds no bias of its own.
  bool experts() const { return !attention() && context_.config.has_experts(index_ / 2); }
  /// Its unit in the parameter table.
  int unit() const { return 1 + index_; }

  /// Computes a.normalised from a.input.
  void normalise(const BranchActivations& a, const BranchTensors& p) const;
  /// Computes output (R, C) from a.normalised; fills a.inner, a.hidden, a.log_sum_exp. With a.cache the rows are
  /// tokens of one sequence that also attend to the tokens before them, and their keys and values are appended to
  /// the cache.
  void apply(const Tensor& output, const BranchActivations& a, const BranchTensors& p,
             const MicroBatch& batch) const;
  /// The two matrices of apply(), for callers that compute attention between them. The first: a.inner, q, k and v, from
  /// a.normalised.
  void query_key_value(const BranchActivations& a, const BranchTensors& p, const MicroBatch& batch) const;
  /// The second: output (R, C) from a.hidden.
  void project(const Tensor& output, const BranchActivations& a, const BranchTensors& p,
               const MicroBatch& batch) const;
  /// Computes next (R, C) from a.input and output.
  void add(const Tensor& next, const BranchActivations& a, const Tensor& output, const BranchTensors& p,
           const MicroBatch& batch) const;

  /// The gradient of output, from dx (R, C), the gradient of the residual stream after the branch.
  /// @return  dx itself without dropout, else @p scratch (R, C).
  Tensor output_backward(const Tensor& dx, const Tensor& scratch, const MicroBatch& batch) const;
  /// output_backward(), and d.out_bias += its gradient.
  Tensor add_backward(const BranchTensors& d, const Tensor& dx, const Tensor& scratch,
                      const MicroBatch& batch) const;
  /// Computes dhidden (R, C / n), the gradient of a.hidden; attention only.
  void hidden_backward(const Tensor& dhidden, const Tensor& doutput, const BranchTensors& p,
                       const MicroBatch& batch) const;
  /// Computes dinner (R, F / n), the gradient of a.inner.
  /// @param dhidden  (R, C / n) scratch, used by attention only.
  void inner_backward(const Tensor& dinner, const Tensor& dhidden, const Tensor& doutput,
                      const BranchActivations& a, const BranchTensors& p, const MicroBatch& batch) const;
  /// Computes dnormalised (R, C), a partial sum when sharded.
  void normalised_backward(const Tensor& dnormalised, const Tensor& dinner, const BranchTensors& p,
                           const MicroBatch& batch) const;
  /// Adds the gradients of the two matrices and of in_bias to
  /// @p d. Nothing depends on them, so they can be deferred.
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
  /// dx += the gradient of the branch's input; adds the gradients of the norm to @p d.
  void normalise_backward(const Tensor& dx, const BranchTensors& d, const Tensor& dnormalised,
                          const BranchActivations& a, const BranchTensors& p, const MicroBatch& batch) const;

  /// Sizes and mask of attention over the tokens of @p batch.
  AttentionShape attention_shape(const MicroBatch& batch) const;
  /// Its dropout.
  Dropout attention_dropout(const MicroBatch& batch) const;

 private:
  Dropout residual_dropout(const MicroBatch& batch) const;
  SumOrder in_order(std::int64_t F) const;
  void record_inner(const BranchActivations& a, const MicroBatch& batch) const;

  ModelContext context_;
  int index_;
};

/// Unit 2 L + 1: the last norm, the logits, the loss. Softmax over a sharded vocabulary needs the maximum over all
/// shards, then their sum and the target's logit: row_maximum(), row_sum() and loss() are the computations between
/// those all-reduces.
class Head {
 public:
  /// @param context  settings that all building blocks share.
  explicit Head(const ModelContext& context) : context_(context) {}

  /// Computes a.normalised from a.input.
  void normalise(const HeadActivations& a, const HeadTensors& p) const;
  /// Computes a.logits from a.normalised.
  void logits(const HeadActivations& a, const HeadTensors& p) const;
  /// Computes a.maximum over this shard's logits.
  void row_maximum(const HeadActivations& a) const;
  /// Computes a.sum and a.target_logit over this shard's logits, given the maximum over all shards.
  void row_sum(const HeadActivations& a, const MicroBatch& batch) const;
  /// The sum of losses, given the sums over all shards.
  LossSum loss(const HeadActivations& a, const MicroBatch& batch) const;

  /// Overwrites a.logits with their gradient; dnormalised (R, C) is a partial sum when sharded.
  void logits_backward(const Tensor& dnormalised, const HeadActivations& a, const HeadTensors& p,
                       const MicroBatch& batch) const;
  /// d.token += the embedding's gradient, from the gradient of the logits.
  void weights_backward(const HeadTensors& d, const HeadActivations& a, const MicroBatch& batch) const;
  /// logits_backward() and weights_backward().
  void apply_backward(const Tensor& dnormalised, const HeadTensors& d, const HeadActivations& a,
                      const HeadTensors& p, const MicroBatch& batch) const;
  /// dx (R, C) += the gradient of the head's input; adds the gradients of the norm to @p d.
  void normalise_backward(const Tensor& dx, const HeadTensors& d, const Tensor& dnormalised,
                          const HeadActivations& a, const HeadTensors& p, const MicroBatch& batch) const;

  /// normalise() ... loss() in order, for a head that is not sharded.
  LossSum forward(const HeadActivations& a, const HeadTensors& p, const MicroBatch& batch) const;

 private:
  Range vocabulary() const;
  SumOrder vocabulary_order() const;
  std::int64_t unit() const { return 2 * context_.config.layers + 1; }
  void record_logits(const HeadActivations& a, const MicroBatch& batch) const;

  ModelContext context_;
};

/// The whole chain, or a run of its units. It holds no parameters: they are passed in, so that a lesson decides
/// where they are stored.
struct Model {
  /// @param context  settings that the building blocks share; the kernels outlive the model.
  /// @param units    units whose branches the model has; all by default.
  explicit Model(const ModelContext& context, Range units = {0, -1});

  ModelContext context;          ///< settings that the building blocks share
  Embedding embedding;           ///< unit 0
  std::vector<Branch> branches;  ///< branches of units 1 .. 2 L that are in the run
  Head head;                     ///< unit 2 L + 1
};

/// Forward pass of the whole chain on one device.
/// @return  the sum of losses over the micro-batch.
LossSum forward(const Model& model, const ModelTensors& p, const Activations& kept, const Workspace& work,
                const MicroBatch& batch);

/// Forward and backward pass of the whole chain on one device; adds the gradients of the sum of losses to @p d.
/// With recomputation (work.block is not empty) each block's forward pass runs again before its backward pass.
LossSum forward_backward(const Model& model, const ModelTensors& p, const ModelTensors& d, const Activations& kept,
                         const Workspace& work, Stream& stream, const MicroBatch& batch);

}  // namespace rankwise
