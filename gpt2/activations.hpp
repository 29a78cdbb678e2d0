#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/partition.hpp"
#include "common/memory/device.hpp"
#include "gpt2/config.hpp"
#include "gpt2/kernels/sum_order.hpp"

/// @file
/// The activations that a micro-batch keeps from its forward to its backward pass, and the scratch memory of both.
///
/// R = B T rows, n tensor-parallel ranks. Between the tensor-parallel layers a device has all R rows; with sequence
/// parallelism it has R / t of them, t = n (else t = 1). All tensors have the type of the model, except the
/// statistics, which have its accumulator_of().

namespace rankwise {

/// The shape of a micro-batch on one device.
struct ActivationShape {
  DType type = DType::f32;        ///< type of parameters and activations
  std::int64_t B = 0;             ///< sequences
  std::int64_t T = 0;             ///< tokens per sequence
  Part part{};                    ///< tensor-parallel shard of each layer that is computed here
  bool recompute = false;         ///< true if only the inputs of blocks are kept (activation checkpointing)
  Part tokens{};                  ///< sequence-parallel shard of the tokens that is here between those layers
  bool regather = false;          ///< true if only this rank's normalised rows are kept and all are gathered again
  Range units{0, -1};             ///< units that are computed here, in whole blocks; all by default
  bool defers_weights = false;    ///< true if weight gradients are deferred, so that their factors are kept
  DType gradients = DType::f32;   ///< type of the gradients
  std::int64_t expert_ranks = 1;  ///< e, expert-parallel ranks, which share the experts and exchange rows
  std::int64_t token_runs = 1;    ///< equal runs of tokens that make up a sequence, of which T tokens are one

  /// The shape for micro-batches of @p sequences.
  ActivationShape with_sequences(std::int64_t sequences) const
  {
    ActivationShape other = *this;
    other.B = sequences;
    return other;
  }
  /// R.
  std::int64_t rows() const { return B * T; }
  /// R / t.
  std::int64_t shared_rows() const { return rows() / tokens.count; }
  /// Normalised rows that are kept: R, or R / t.
  std::int64_t normalised_rows() const { return regather ? shared_rows() : rows(); }
  /// A, the most rows that this rank sends to the experts of a block: min(k T, E c) a sequence. Here c is the capacity
  /// of an expert for whole sequences, and at most T, since a token chooses an expert once.
  std::int64_t most_sent(const ModelConfig& config) const;
  /// S, the most rows that this rank's E / e experts of a block receive from the e ranks: min(k T, E c / e) a
  /// sequence of each, with the same c.
  std::int64_t most_received(const ModelConfig& config) const;
  /// True if the embedding, unit 0, is computed here.
  bool has_embedding() const { return units.first == 0; }
  /// True if the head, unit 2 L + 1, is computed here.
  bool has_head(const ModelConfig& config) const { return units.count < 0 || units.end() == unit_count(config); }
  /// Number of blocks that are computed here: L by default.
  std::int64_t blocks(const ModelConfig& config) const
  {
    if (units.count < 0) return config.layers;
    return (units.count - (has_embedding() ? 1 : 0) - (has_head(config) ? 1 : 0)) / 2;
  }
  /// The first of them, counted from the model's first.
  std::int64_t first_block() const { return units.first / 2; }
  /// Number of them that have experts.
  std::int64_t expert_blocks(const ModelConfig& config) const;
};

/// Activations that a branch with experts needs in addition, and where its rows are. A and S as in ActivationShape.
struct RoutedActivations {
  Tensor probabilities;  ///< (R, E) of the router
  Tensor weights;        ///< (R, k) of the chosen experts
  Tensor choices;        ///< (R, k) i32, their numbers
  Tensor places;         ///< (R, k) i32, row of each choice among those sent; -1: the expert's capacity was reached
  Tensor pull;           ///< (B, E) gradient of the auxiliary loss with respect to a probability
  Tensor sent_leaves;    ///< (E, leaves) i64, rows sent to each expert, by leaf of the sum over the batch
  Tensor leaf_ends;      ///< (e, E / e, leaves) i64, rows that arrived by rank and expert: end of each leaf
  Tensor received;       ///< (S, C) rows that arrived here, by rank, then by expert
  Tensor inner;          ///< (S, 4 C / n) the experts' hidden layer before GELU
  Tensor hidden;         ///< (S, 4 C / n) and after
  Tensor returned;       ///< (A, C) outputs of the experts for the rows that were sent
};

/// Activations that the backward pass of a branch needs. F = 3 C (attention) or 4 C (MLP). In GPT-2 the norm comes
/// before the matrices. In BERT it comes after them (post-norm): `normalised` is what the branch before has
/// normalised, and `input` the sum that this branch's norm reads.
struct BranchActivations {
  Tensor input;                   ///< (R / t, C) the residual stream before the branch
  Tensor normalised;              ///< (R, C), or (R / t, C) when it is gathered again
  Tensor mean;                    ///< (R / t)
  Tensor rstd;                    ///< (R / t)
  Tensor inner;                   ///< (R, F / n) q, k, v; or the hidden layer before GELU
  Tensor hidden;                  ///< (R, C / n) the heads' outputs; or (R, 4 C / n) the hidden layer after GELU
  Tensor log_sum_exp;             ///< (B, H / n, T), attention only
  Tensor cache;                   ///< (context, 2 C / n) k, v of one sequence; attention only, for generation only
  RoutedActivations routed = {};  ///< activations of a branch with experts, which has neither `inner` nor `hidden`
};

/// Activations that the backward pass of the head needs. V is the padded vocabulary.
struct HeadActivations {
  Tensor input;         ///< (R / t, C) the residual stream before the head
  Tensor normalised;    ///< (R, C), or (R / t, C) when it is gathered again
  Tensor mean;          ///< (R / t)
  Tensor rstd;          ///< (R / t)
  Tensor logits;        ///< (R, V / n); the backward pass overwrites them with their gradient
  Tensor maximum;       ///< (R)
  Tensor sum;           ///< (R)
  Tensor target_logit;  ///< (R)
};

/// Gradients that a branch's deferred weight gradients (W) are computed from; B, its backward pass for the input,
/// keeps them.
struct DeferredBranch {
  Tensor doutput;      ///< (R, C) gradient of the branch's output
  Tensor dinner;       ///< (R, F / n) gradient of BranchActivations::inner
  Tensor norm_weight;  ///< (C) gradient of the norm's weight
  Tensor norm_bias;    ///< (C) gradient of the norm's bias
};

/// Gradients that a micro-batch's deferred weight gradients (W) are computed from; B keeps them.
struct Deferred {
  Tensor stream;                         ///< (R, C) gradient of the embedding's output
  std::vector<DeferredBranch> branches;  ///< gradients of each branch
  Tensor norm_weight;                    ///< (C) gradient of the head's norm weight
  Tensor norm_bias;                      ///< (C) gradient of the head's norm bias
};

/// Buffers that one owner allocates and frees together.
class BufferPool {
 public:
  /// Allocates each tensor separately.
  BufferPool() = default;
  /// Places all tensors in one Arena.
  /// @param device   device of the arena; outlives the pool.
  /// @param bytes    size of all tensors together.
  /// @param tensors  maximum number of tensors.
  BufferPool(Device& device, std::int64_t bytes, std::int64_t tensors)
      : arena_(std::make_unique<Arena>(device, bytes, tensors))
  {
  }
  /// Moves the tensors.
  BufferPool(BufferPool&&) noexcept = default;

  /// Allocates a tensor that lives as long as the pool.
  Tensor make(const DeviceMemory& memory, Category category, DType type, const Shape& shape, std::string_view what);

 private:
  std::unique_ptr<Arena> arena_;
  std::vector<Buffer> buffers_;
};

/// Scratch memory of forward and backward passes: it lives for the whole run, and all micro-batches share it.
class Workspace {
 public:
  /// @param memory  memory of the device; outlives the workspace.
  /// @param config  the model.
  /// @param shape   shape of the micro-batches.
  /// @throws Error  when there is not enough memory.
  Workspace(const DeviceMemory& memory, const ModelConfig& config, const ActivationShape& shape);

  Tensor output;    ///< (R, C) a branch's output before it is added; later the gradient of its normalised input
  Tensor dstream;   ///< (R / t, C) the gradient of the residual stream
  Tensor wide;      ///< (R 4 C / n) gradients inside a branch
  Tensor gathered;  ///< (R, C) normalised rows of all ranks, when they are gathered again; else empty
  /// Scratch of a branch with experts; empty for a model without.
  struct Experts {
    Tensor logits;    ///< (R, E) of the router
    Tensor dlogits;   ///< (R, E) and their gradient
    Tensor dweights;  ///< (R, k) gradient of the weights
    Tensor sent;      ///< (A, C) rows that are sent to the experts; later the gradients of their outputs or inputs
    Tensor output;    ///< (S, C) the experts' outputs; later their gradient, then that of the inputs
    Tensor wide;      ///< (S, 4 C / n) gradient inside the experts
    Tensor no_bias;   ///< (C) zeros: each expert has added its own bias
  };
  Experts experts;                       ///< shared by all branches with experts
  std::vector<BranchActivations> block;  ///< one block's activations with recomputation, else empty

 private:
  BufferPool pool_;
};

/// The activations that one micro-batch in flight keeps from its forward to its backward pass.
class Activations {
 public:
  /// @param memory     memory of the device; outlives the activations.
  /// @param config     the model.
  /// @param shape      shape of the micro-batch.
  /// @param workspace  workspace of the same shape; with recomputation its block is used, so it outlives the
  ///                   activations.
  /// @throws Error     when there is not enough memory.
  Activations(const DeviceMemory& memory, const ModelConfig& config, const ActivationShape& shape,
              const Workspace& workspace);

  Tensor inputs;                            ///< (R) i32 tokens; only with the embedding
  Tensor targets;                           ///< (R) i32 tokens, -1 where nothing is counted; only with the head
  std::vector<BranchActivations> branches;  ///< two per block; with recomputation only `input` is stored per block
  HeadActivations head;                     ///< activations of the head; only with the head
  Deferred deferred;                        ///< gradients kept for the deferred weight gradients

  /// The residual stream before branch @p i of those that are here; for i = branches.size(), the input of the head,
  /// which is empty when the head is computed elsewhere.
  const Tensor& stream(std::size_t i) const { return i < branches.size() ? branches[i].input : head.input; }

 private:
  BufferPool pool_;
};

/// Bytes of Activations and of the block that recomputation shares, from the sizes alone. With a = 4 bytes for
/// statistics, s bytes per element, and R = B T:
///
///     block   s R (2 C / t + 2 C / u + 12 C / n) + a R (4 / t + H / n)
///     head    s R (C / t + C / u + V / n) + a R (3 + 2 / t), and 8 R for the tokens
///     whole   L blocks + head;   with recomputation  L s R C / t + one block - s R C / t + head
///
/// A block with experts has, in place of 8 s R C / n for the hidden layer, s (S + 8 S / n + A) C + a (R (E + k) + B E)
/// + 8 R k + 16 E leaves, with `leaves` leaves of the sum over the micro-batch, 16 a sequence.
///
/// with u = t when normalised rows are gathered again, else 1. A run of units counts its own blocks; of the 8 R
/// bytes of tokens, 4 R (inputs) come with the embedding and 4 R (targets) with the head. Deferred weight gradients
/// take s R (2 C + 7 C / n) more per block, s R C for the embedding, and 2 C gradients for each norm.
///
/// A BERT has those of BertActivations besides.
///
/// @source  Korthikanti et al. 2022, equations 1 and 2, for attention that does not store its T x T weights.
std::int64_t activation_bytes(const ModelConfig& config, const ActivationShape& shape);
/// Bytes of Activations alone, without the block that recomputation shares: needed for each micro-batch in flight.
std::int64_t kept_bytes(const ModelConfig& config, const ActivationShape& shape);
/// Bytes of a Workspace without the recomputed block: s R (C + C / t + 4 C / n), and s R C for gathered rows;
/// if a block has experts s ((A + S + 4 S / n + 1) C + R E) + a R (E + k) more.
std::int64_t workspace_bytes(const ModelConfig& config, const ActivationShape& shape);

}  // namespace rankwise
