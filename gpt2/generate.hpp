#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "gpt2/model.hpp"
#include "gpt2/sampling.hpp"

/// @file
/// Text generation, one token after the other.

namespace rankwise {

/// Forward passes of a causal model over a growing text, split into the calls that a lesson makes.
///
///     pass.begin(text);  pass.embedding(p);  pass.branch(0, p); ... pass.branch(2 L - 1, p);
///     logits = pass.head(p);
///
/// With tensor parallelism each rank has some of the heads, with their keys and values; the caller sums the partial
/// results of the tensor-parallel ranks between two calls:
///
///     pass.lookup(p) ... sum ... pass.add(p);   pass.apply(i, p) ... sum ... pass.add(i, p);   pass.logits(p)
///
/// Keys and values of a token depend only on the tokens up to it, so those of every layer are cached (KV cache): a
/// new token costs one row of the forward pass instead of one row for each token before it. Positions are counted
/// from the first token of the window that the model sees, at most T tokens. When the text is longer, the window
/// slides, all positions change, and each new token costs a forward pass over T rows.
///
/// Memory, with s bytes per element, V padded and n tensor-parallel ranks: 2 s L T C / n for keys and values
/// (activations), and s (4 T C + 8 T C / n + V / n) + 8 T + 4 T
/// (workspace: one layer's activations, statistics, tokens).
class GeneratingPass {
 public:
  /// @param memory   memory of the device; outlives the pass.
  /// @param stream   stream of the kernels.
  /// @param model    a whole model, a tensor-parallel shard or a run of units, with a causal mask; outlives the
  ///                 pass.
  /// @param type     type of its parameters.
  /// @param T        largest number of tokens that the model sees at a time, at most its context.
  /// @throws Error   when there is not enough memory.
  GeneratingPass(const DeviceMemory& memory, Stream& stream, const Model& model, DType type, std::int64_t T);

  /// Begins a pass over the last T tokens of @p text. The first tokens that they share with the previous pass are
  /// not computed again.
  /// @param text  at least one token; need not continue the previous text.
  void begin(std::span<const Token> text);
  /// Computes the embedding of the new tokens; for an unsharded model.
  void embedding(const EmbeddingTensors& p);
  /// Computes branch @p i over the new tokens; for an unsharded model.
  void branch(std::size_t i, const BranchTensors& p);
  /// The logits (V, without padding) of the next token; for an unsharded model.
  std::vector<float> head(const HeadTensors& p);

  /// Rows of the token embedding for the new tokens, (new tokens, C): a partial sum.
  Tensor lookup(const EmbeddingTensors& p);
  /// Adds the position embeddings to the result of lookup().
  void add(const EmbeddingTensors& p);
  /// Output of branch @p i for the new tokens, (new tokens, C): a partial sum.
  Tensor apply(std::size_t i, const BranchTensors& p);
  /// Adds the result of apply() to the residual stream.
  void add(std::size_t i, const BranchTensors& p);
  /// This shard's logits (stored V / n) of the next token; ends the pass.
  Tensor logits(const HeadTensors& p);

  /// The residual stream of the new tokens before branch @p i, or after the last branch, (new tokens, C). A
  /// pipeline stage receives the first from the previous stage and sends the last to the next one.
  Tensor rows(std::size_t i) const;
  /// The residual stream of the new tokens after the last branch.
  Tensor rows_behind() const { return rows(model_.branches.size()); }
  /// Ends the pass without logits, when the head is computed elsewhere.
  void end() { seen_ = window_; }

 private:
  Tensor output() const;
  BranchActivations activations(std::size_t branch) const;

  Stream& stream_;
  const Model& model_;
  std::int64_t T_;
  std::vector<Token> seen_, window_;  // the window whose keys and values are cached; the window of the current pass
  MicroBatch batch_;                  // new tokens of the current pass

  BufferPool pool_;
  std::vector<Tensor> caches_;     // (T, 2 C) per block: keys and values
  std::array<Tensor, 2> streams_;  // (T, C): residual stream before and after a branch, alternately
  Tensor normalised_, output_;     // (T, C)
  Tensor inner_, hidden_;          // (T, 4 C)
  Tensor mean_, rstd_;             // (T)
  Tensor inputs_, logits_;         // (T) i32, (V)
};

/// Copies logits to the host, without padding.
/// @param stream  stream of the device that computed them.
/// @param logits  (at least V) logits of the whole vocabulary, shard after shard.
std::vector<float> read_logits(Stream& stream, const Tensor& logits, const ModelConfig& config);

/// Continues a text with an unsharded model, all of whose parameters are on this device.
class Generator {
 public:
  /// @param memory, stream, model, T  as for GeneratingPass.
  /// @param weights  views of its parameters, which must not change while text is generated.
  /// @throws Error   when there is not enough memory.
  Generator(const DeviceMemory& memory, Stream& stream, const Model& model, const ModelTensors& weights,
            std::int64_t T);

  /// The logits (V, without padding) of the token that follows @p text, computed from its last T tokens.
  /// @param text  at least one token; need not continue the previous text.
  std::vector<float> next_logits(std::span<const Token> text);

  /// Generates @p count tokens after @p prompt; pick_token() draws each, with its number counted from 0.
  std::vector<Token> generate(std::span<const Token> prompt, std::int64_t count, const SamplingOptions& sampling);

 private:
  ModelTensors weights_;
  GeneratingPass pass_;
};

}  // namespace rankwise
