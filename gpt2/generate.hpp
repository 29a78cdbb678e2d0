#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "gpt2/model.hpp"
#include "gpt2/sampling.hpp"

/// @file
/// Text from a model, one token after the other.

namespace rankwise {

/// Forward passes of a model, whose mask is causal, over texts that grow: piece by piece, as a lesson calls them.
///
///     pass.begin(text);  pass.embedding(p);  pass.branch(0, p); ... pass.branch(2 L - 1, p);  logits = pass.head(p);
///
/// Of a divided model each rank has a part of the heads, and so of keys and values; what has to be added up over the parts
/// lies open between two calls:
///
///     pass.lookup(p) ... sum ... pass.add(p);   pass.apply(i, p) ... sum ... pass.add(i, p);   pass.logits(p)
///
/// Keys and values of a token depend on the tokens up to it and on nothing else, so those of every layer are kept: a new
/// token costs one row of the forward pass instead of one for each token before it. Positions are counted from the
/// first token of the window that the model sees, at most T tokens. When the text is longer, the window slides, all
/// positions change, and each new token costs a pass over T rows.
///
/// Memory, with s bytes an element, V padded and n parts: 2 s L T C / n for keys and values (activations), and
/// s (4 T C + 8 T C / n + V / n) + 8 T + 4 T (workspace: one layer's activations, statistics, tokens).
class GeneratingPass {
 public:
  /// @param memory   where from; outlives the pass.
  /// @param stream   that the kernels work on.
  /// @param model    whole, a part or a run of units, its mask causal; outlives the pass.
  /// @param type     of its parameters.
  /// @param T        the most tokens that the model sees at a time, at most its context.
  /// @throws Error   when there is no room.
  GeneratingPass(const DeviceMemory& memory, Stream& stream, const Model& model, DType type, std::int64_t T);

  /// Begins a pass over the last T tokens of @p text. What they and those of the pass before have in common at the
  /// beginning is not computed again.
  /// @param text  at least one token; any text, not only one that continues the text before.
  void begin(std::span<const Token> text);
  /// The embedding of the new tokens, of a whole model.
  void embedding(const EmbeddingTensors& p);
  /// Branch @p i over the new tokens, of a whole model.
  void branch(std::size_t i, const BranchTensors& p);
  /// The logits (V, padding left out) of the token that follows, of a whole model.
  std::vector<float> head(const HeadTensors& p);

  /// What the new tokens' rows of the token embedding are, (new tokens, C): a partial sum.
  Tensor lookup(const EmbeddingTensors& p);
  /// The positions are added to that.
  void add(const EmbeddingTensors& p);
  /// What branch @p i adds to the new tokens, (new tokens, C): a partial sum.
  Tensor apply(std::size_t i, const BranchTensors& p);
  /// That is added.
  void add(std::size_t i, const BranchTensors& p);
  /// This part's logits (stored V / n) of the token that follows; with them the pass ends.
  Tensor logits(const HeadTensors& p);

  /// The residual stream of the new tokens in front of branch @p i, or behind the last, (new tokens, C): where a model is
  /// a run of units, what comes from those before it and goes to those behind it.
  Tensor rows(std::size_t i) const;
  /// Those behind the last branch.
  Tensor rows_behind() const { return rows(model_.branches.size()); }
  /// The pass ends without logits, where the head is elsewhere.
  void end() { seen_ = window_; }

 private:
  Tensor output() const;
  BranchActivations activations(std::size_t branch) const;

  Stream& stream_;
  const Model& model_;
  std::int64_t T_;
  std::vector<Token> seen_, window_;  // the window whose keys and values are cached; that of the pass under way
  MicroBatch batch_;                  // its new tokens

  BufferPool pool_;
  std::vector<Tensor> caches_;     // a block's each, (T, 2 C): keys and values
  std::array<Tensor, 2> streams_;  // (T, C): in front of a branch and behind it, by turns
  Tensor normalised_, output_;     // (T, C)
  Tensor inner_, hidden_;          // (T, 4 C)
  Tensor mean_, rstd_;             // (T)
  Tensor inputs_, logits_;         // (T) i32, (V)
};

/// Logits on the host, padding left out.
/// @param stream  of the device that made them.
/// @param logits  (at least V) of the whole vocabulary, part behind part.
std::vector<float> read_logits(Stream& stream, const Tensor& logits, const ModelConfig& config);

/// Continues a text with a whole model, all of whose parameters are at hand.
class Generator {
 public:
  /// @param memory, stream, model, T  as for GeneratingPass.
  /// @param weights  views of its parameters, which stay as they are while text is generated.
  /// @throws Error   when there is no room.
  Generator(const DeviceMemory& memory, Stream& stream, const Model& model, const ModelTensors& weights,
            std::int64_t T);

  /// The logits (V, padding left out) of the token that follows @p text, from its last T tokens.
  /// @param text  at least one token; any text, not only one that continues the text before.
  std::vector<float> next_logits(std::span<const Token> text);

  /// @p count tokens that follow @p prompt, each drawn by pick_token() with its number from 0.
  std::vector<Token> generate(std::span<const Token> prompt, std::int64_t count, const SamplingOptions& sampling);

 private:
  ModelTensors weights_;
  GeneratingPass pass_;
};

}  // namespace rankwise
