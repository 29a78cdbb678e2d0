#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/partition.hpp"
#include "data/permutation.hpp"
#include "data/tokenizer.hpp"

/// @file
/// The data of a run, and the loader: which window of the text is which sequence of which step.

namespace rankwise {

/// A long sequence of tokens that is read in pieces; it may be larger than memory.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  /// Number of tokens.
  virtual std::int64_t size() const = 0;
  /// Fills @p out with the tokens [first, first + out.size()), which must be inside [0, size()).
  virtual void read(std::int64_t first, std::span<Token> out) const = 0;
};

/// Tokens held in memory.
class MemoryTokens final : public TokenSource {
 public:
  /// Takes ownership of @p tokens.
  /// @param tokens  all tokens of the source.
  explicit MemoryTokens(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(tokens_.size()); }
  void read(std::int64_t first, std::span<Token> out) const override;

 private:
  std::vector<Token> tokens_;
};

/// The training and validation data of a run.
struct Tokens {
  std::shared_ptr<const TokenSource> train;       ///< the first 90 % of the text
  std::shared_ptr<const TokenSource> validation;  ///< the last 10 %, never trained on
  std::int64_t vocabulary = 0;                    ///< every token is in [0, vocabulary)
  std::string name;                               ///< name in messages: "the embedded corpus", or the token file
  std::shared_ptr<const Tokenizer> tokenizer;     ///< tokenizer that encoded the text and decodes tokens
  std::string sha256;                             ///< SHA-256 of the source text, before it was split
  std::optional<double> floor;                    ///< entropy in nats per token, if it is known
};

/// One micro-batch: @p B sequences of @p T tokens.
struct Batch {
  std::int64_t B = 0;             ///< sequences
  std::int64_t T = 0;             ///< tokens per sequence
  std::vector<Token> inputs;      ///< (B, T), every token in [0, vocabulary)
  std::vector<Token> targets;     ///< (B, T), the next tokens; -1: not counted (the per-token loss mask)
  std::int64_t valid_tokens = 0;  ///< number of targets that are counted, that is, not -1
};

/// The shape and order of a Loader's batches.
struct LoaderOptions {
  std::int64_t T = 0;             ///< tokens per sequence, >= 1
  std::int64_t global_batch = 1;  ///< G: sequences per step over all ranks, >= 1
  std::uint64_t seed = 0;         ///< seed of the order of each epoch
  /// Number of targets at the beginning of each sequence that are not counted. With attention mask prefix(k) a
  /// token sees the whole prefix, which reveals the k-1 targets inside it.
  std::int64_t uncounted_prefix = 0;
};

/// Loads the windows of a token sequence in random order.
///
/// The n tokens are divided into W = (n-1)/T windows: window w reads tokens [wT, wT + T) and predicts [wT + 1, wT +
/// T + 1). TrainingOrder(W, seed, G) says which window is which sequence of which step. Nothing depends on the number
/// of ranks; each rank names the sequences of the global batch that it computes.
class Loader {
 public:
  /// @param source   at least T+1 tokens, else Error is thrown.
  /// @param options  see LoaderOptions.
  Loader(std::shared_ptr<const TokenSource> source, const LoaderOptions& options);

  /// W: number of windows, the sequences of one epoch.
  std::int64_t windows() const { return order_.size(); }
  /// Number of steps, rounded up, after which every window has been visited @p epochs times.
  std::int64_t steps(std::int64_t epochs) const { return order_.steps(epochs); }
  /// The window of sequence @p sequence (in [0, G)) of step @p step.
  std::int64_t window_of(std::int64_t step, std::int64_t sequence) const { return order_.at(step, sequence); }

  /// Fills @p out with sequences @p sequences of the global batch of step @p step.
  /// @param[in]  step       >= 0.
  /// @param[in]  sequences  inside [0, G); B = sequences.count.
  /// @param[out] out        resized to (B, T); its memory is reused from call to call.
  void load(std::int64_t step, Range sequences, Batch& out) const;

  /// Fills @p out with windows @p windows in the order of the text, for evaluation.
  /// @param[in]  windows  inside [0, W), or none; B = windows.count.
  /// @param[out] out      resized to (B, T).
  void load_in_order(Range windows, Batch& out) const;

 private:
  void resize(std::int64_t B, Batch& out) const;
  void load_window(std::int64_t window, std::int64_t b, Batch& out) const;

  std::shared_ptr<const TokenSource> source_;
  LoaderOptions options_;
  TrainingOrder order_;
};

/// Pads @p batch to @p B sequences with sequences that are not counted: token 0, target -1.
/// @param batch  a batch of at most @p B sequences.
void pad(Batch& batch, std::int64_t B);

/// The tokens @p tokens of each sequence of @p batch.
Batch tokens_of(const Batch& batch, Range tokens);

/// Refuses data that are too short: a step needs G T + 1 tokens to train on, an evaluation T + 1.
/// @param tokens        the data of the run.
/// @param T             tokens per sequence.
/// @param global_batch  G.
/// Throws UserError with the number needed, the number present, and the options that change it.
void check_enough_tokens(const Tokens& tokens, std::int64_t T, std::int64_t global_batch);

/// Refuses data with a token outside the vocabulary of a model with @p vocabulary entries.
/// Reads the data, in blocks, only when their vocabulary is larger than the model's.
/// Throws UserError with the first such token and its position.
void check_vocabulary(const Tokens& tokens, std::int64_t vocabulary);

/// A token and its position.
struct TokenAt {
  std::int64_t position = 0;  ///< position in its source
  Token token = 0;            ///< the token
};

/// The first token of @p source outside [0, @p vocabulary), found by reading in blocks; empty when all are inside.
std::optional<TokenAt> first_token_beyond(const TokenSource& source, std::int64_t vocabulary);

}  // namespace rankwise
