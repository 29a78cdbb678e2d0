#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/partition.hpp"
#include "common/memory/device.hpp"
#include "gpt2/config.hpp"

/// @file
/// What a micro-batch keeps between its forward and its backward pass, and the scratch of both.
///
/// R = B T rows, n parts of each layer. Between the divided layers a device has all rows, or where the sequence is
/// divided too, R / t of them: t = n with sequence parallelism, else 1. All tensors have the type of the model but the
/// statistics, which have its accumulator_of().

namespace rankwise {

/// The shape of a micro-batch on one device.
struct ActivationShape {
  DType type = DType::f32;        ///< of parameters and activations
  std::int64_t B = 0;             ///< sequences
  std::int64_t T = 0;             ///< tokens a sequence
  Part part{};                    ///< which part of each layer is computed here
  bool recompute = false;         ///< keep the inputs of blocks only, and run their forward pass again
  Part tokens{};                  ///< which part of each sequence is here between the divided layers
  bool regather = false;          ///< keep this part's normalised rows only, and gather those of all parts again
  Range units{0, -1};             ///< the units that are computed here, whole blocks of them; all by default
  bool puts_weights_off = false;  ///< keep what the gradients of weights are made of until they are made
  DType gradients = DType::f32;   ///< of those

  /// R.
  std::int64_t rows() const { return B * T; }
  /// R / t.
  std::int64_t shared_rows() const { return rows() / tokens.count; }
  /// Of what is kept of normalised rows: R, or R / t.
  std::int64_t normalised_rows() const { return regather ? shared_rows() : rows(); }
  /// Whether the embedding, unit 0, is computed here.
  bool has_embedding() const { return units.first == 0; }
  /// Whether the head, unit 2 L + 1, is computed here.
  bool has_head(const ModelConfig& config) const { return units.count < 0 || units.end() == unit_count(config); }
  /// How many blocks are computed here: L by default.
  std::int64_t blocks(const ModelConfig& config) const
  {
    if (units.count < 0) return config.layers;
    return (units.count - (has_embedding() ? 1 : 0) - (has_head(config) ? 1 : 0)) / 2;
  }
};

/// What the backward pass of a branch needs. F = 3 C (attention) or 4 C (MLP).
struct BranchActivations {
  Tensor input;        ///< (R / t, C) the residual stream as it comes in
  Tensor normalised;   ///< (R, C), or (R / t, C) where it is gathered again
  Tensor mean;         ///< (R / t)
  Tensor rstd;         ///< (R / t)
  Tensor inner;        ///< (R, F / n) q, k, v; or the hidden layer before GELU
  Tensor hidden;       ///< (R, C / n) the heads' outputs; or (R, 4 C / n) the hidden layer after GELU
  Tensor log_sum_exp;  ///< (B, H / n, T), attention only
  Tensor cache;        ///< (context, 2 C / n) k, v of one sequence; attention only, and only to generate text
};

/// What the backward pass of the head needs. V is the padded vocabulary.
struct HeadActivations {
  Tensor input;         ///< (R / t, C) the residual stream as it comes in
  Tensor normalised;    ///< (R, C), or (R / t, C) where it is gathered again
  Tensor mean;          ///< (R / t)
  Tensor rstd;          ///< (R / t)
  Tensor logits;        ///< (R, V / n); the backward pass turns it into its own gradient
  Tensor maximum;       ///< (R)
  Tensor sum;           ///< (R)
  Tensor target_logit;  ///< (R)
};

/// What the first half of a branch's backward pass leaves to the second, where weights are put off.
struct DeferredBranch {
  Tensor doutput;      ///< (R, C) the gradient of what the branch adds
  Tensor dinner;       ///< (R, F / n) that of BranchActivations::inner
  Tensor norm_weight;  ///< (C) the gradient of the norm's weight
  Tensor norm_bias;    ///< (C) and of its bias
};

/// What the first half of a backward pass leaves to the second, where weights are put off.
struct Deferred {
  Tensor stream;                         ///< (R, C) the gradient of the embedding
  std::vector<DeferredBranch> branches;  ///< of each branch
  Tensor norm_weight;                    ///< (C) of the head's norm
  Tensor norm_bias;                      ///< (C) of the head's norm
};

/// Buffers that one owner allocates and frees together.
class BufferPool {
 public:
  /// Each tensor has memory of its own.
  BufferPool() = default;
  /// All tensors lie in one Arena.
  /// @param device   where from; outlives the pool.
  /// @param bytes    of all tensors together.
  /// @param tensors  the most that will be made.
  BufferPool(Device& device, std::int64_t bytes, std::int64_t tensors)
      : arena_(std::make_unique<Arena>(device, bytes, tensors))
  {
  }
  /// The tensors change hands.
  BufferPool(BufferPool&&) noexcept = default;

  /// A new tensor, alive as long as the pool.
  Tensor make(const DeviceMemory& memory, Category category, DType type, const Shape& shape, std::string_view what);

 private:
  std::unique_ptr<Arena> arena_;
  std::vector<Buffer> buffers_;
};

/// The scratch of forward and backward passes, alive for the whole run and shared by all micro-batches.
class Workspace {
 public:
  /// @param memory  where from; outlives the workspace.
  /// @param config  the model.
  /// @param shape   of the micro-batches.
  /// @throws Error  when there is no room.
  Workspace(const DeviceMemory& memory, const ModelConfig& config, const ActivationShape& shape);

  Tensor output;    ///< (R, C) what a branch adds, before it is added; later the gradient of its normalised input
  Tensor dstream;   ///< (R / t, C) the gradient of the residual stream
  Tensor wide;      ///< (R 4 C / n) gradients inside a branch
  Tensor gathered;  ///< (R, C) normalised rows of all parts, where they are gathered again; else empty
  std::vector<BranchActivations> block;  ///< one block's activations under recomputation, else empty

 private:
  BufferPool pool_;
};

/// What one micro-batch in flight keeps from its forward to its backward pass.
class Activations {
 public:
  /// @param memory     where from; outlives the activations.
  /// @param config     the model.
  /// @param shape      of the micro-batch.
  /// @param workspace  of the same shape; lends its block under recomputation, and outlives the activations.
  /// @throws Error     when there is no room.
  Activations(const DeviceMemory& memory, const ModelConfig& config, const ActivationShape& shape,
              const Workspace& workspace);

  Tensor inputs;                            ///< (R) i32 tokens, with the embedding
  Tensor targets;                           ///< (R) i32 tokens, -1 where nothing is counted; with the head
  std::vector<BranchActivations> branches;  ///< two a block; under recomputation all blocks share one but its input
  HeadActivations head;                     ///< of the last unit, with the head
  Deferred deferred;                        ///< where weights are put off

  /// The residual stream in front of branch @p i of those that are here, or of the head behind the last; empty behind the
  /// last where the head is elsewhere.
  const Tensor& stream(std::size_t i) const { return i < branches.size() ? branches[i].input : head.input; }

 private:
  BufferPool pool_;
};

/// Bytes of Activations and of the block that recomputation shares, from the sizes alone. With a = 4 bytes for
/// statistics, s bytes an element, and R = B T:
///
///     block   s R (2 C / t + 2 C / u + 12 C / n) + a R (4 / t + H / n)
///     head    s R (C / t + C / u + V / n) + a R (3 + 2 / t), and 8 R for the tokens
///     whole   L blocks + head;   with recomputation  L s R C / t + one block - s R C / t + head
///
/// with u = t where normalised rows are gathered again, else 1. A run of units has its own blocks, with the embedding 4 R of
/// the tokens and with the head the other 4 R. Weights that are put off take s R (2 C + 7 C / n) more a block, s R C for the
/// embedding, and 2 C gradients for each norm.
///
/// @source  Korthikanti et al. 2022, equations 1 and 2, for attention that does not store its T x T weights.
std::int64_t activation_bytes(const ModelConfig& config, const ActivationShape& shape);
/// The bytes of Activations alone, without the block that recomputation shares: of each micro-batch in flight.
std::int64_t kept_bytes(const ModelConfig& config, const ActivationShape& shape);
/// Bytes of a Workspace without the block that it lends: s R (C + C / t + 4 C / n), and s R C for gathered rows.
std::int64_t workspace_bytes(const ModelConfig& config, const ActivationShape& shape);

}  // namespace rankwise
