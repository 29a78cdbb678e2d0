#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/partition.hpp"
#include "data/tokenizer.hpp"

/// @file
/// The data of a run, and the loader that deals it out: which window of the text is which sequence of which step.

namespace rankwise {

/// A long row of tokens that can be read in pieces; it may be larger than memory.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  /// Number of tokens.
  virtual std::int64_t size() const = 0;
  /// Fills @p out with the tokens [first, first + out.size()), which must lie inside [0, size()).
  virtual void read(std::int64_t first, std::span<Token> out) const = 0;
};

/// Tokens held in memory.
class MemoryTokens final : public TokenSource {
 public:
  /// Takes @p tokens over.
  /// @param tokens  all of them.
  explicit MemoryTokens(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(tokens_.size()); }
  void read(std::int64_t first, std::span<Token> out) const override;

 private:
  std::vector<Token> tokens_;
};

/// What a run trains on and what it is judged by.
struct Tokens {
  std::shared_ptr<const TokenSource> train;       ///< the first 90 % of the text
  std::shared_ptr<const TokenSource> validation;  ///< the last 10 %, never trained on
  std::int64_t vocabulary = 0;                    ///< every token is in [0, vocabulary)
  std::string name;                               ///< for people: "the embedded corpus", or the token file
  std::shared_ptr<const Tokenizer> tokenizer;     ///< what made the tokens, and makes text of them
  std::string sha256;                             ///< of the source text, before it was split
  std::optional<double> floor;                    ///< entropy in nats per token, where it is known
};

/// One micro-batch: @p B sequences of @p T tokens.
struct Batch {
  std::int64_t B = 0;             ///< sequences
  std::int64_t T = 0;             ///< tokens a sequence
  std::vector<Token> inputs;      ///< (B, T), every token in [0, vocabulary)
  std::vector<Token> targets;     ///< (B, T), the token that follows; -1: not counted (the per-token loss mask)
  std::int64_t valid_tokens = 0;  ///< targets that count, those that are not -1
};

/// The shape and order of what a Loader deals out.
struct LoaderOptions {
  std::int64_t T = 0;             ///< tokens a sequence, >= 1
  std::int64_t global_batch = 1;  ///< G: sequences a step over all ranks, >= 1
  std::uint64_t seed = 0;         ///< chooses the order of each epoch
  /// The first that many targets of each sequence do not count. With attention mask prefix(k) a token sees the whole
  /// prefix, so the k-1 predictions of tokens inside it are given away.
  std::int64_t uncounted_prefix = 0;
};

/// Deals out the windows of a row of tokens.
///
/// The n tokens are cut into W = (n-1)/T windows: window w reads tokens [wT, wT + T) and predicts [wT + 1, wT + T + 1).
/// Step s takes sequences sG .. sG+G-1 of an endless list, whose sequence g is window Permutation(W, seed, g / W)(g % W):
/// each epoch sees each window once, in an order of its own. Nothing depends on how many ranks share the batch;
/// each names the sequences of the global batch that it wants.
class Loader {
 public:
  /// @param source   at least T+1 tokens, or Error is thrown.
  /// @param options  see LoaderOptions.
  Loader(std::shared_ptr<const TokenSource> source, const LoaderOptions& options);

  /// W: windows, the sequences of one epoch.
  std::int64_t windows() const { return windows_; }
  /// Steps after which every window has been seen @p epochs times, rounded up.
  std::int64_t steps(std::int64_t epochs) const;
  /// The window that is sequence @p sequence (in [0, G)) of step @p step.
  std::int64_t window_of(std::int64_t step, std::int64_t sequence) const;

  /// Fills @p out with sequences @p sequences of the global batch of step @p step.
  /// @param[in]  step       >= 0.
  /// @param[in]  sequences  inside [0, G); B = sequences.count.
  /// @param[out] out        resized to (B, T); its memory is used again from call to call.
  void load(std::int64_t step, Range sequences, Batch& out) const;

  /// Fills @p out with windows @p windows in the order of the text, as an evaluation reads them.
  /// @param[in]  windows  inside [0, W), or none; B = windows.count.
  /// @param[out] out      resized to (B, T).
  void load_in_order(Range windows, Batch& out) const;

 private:
  void resize(std::int64_t B, Batch& out) const;
  void load_window(std::int64_t window, std::int64_t b, Batch& out) const;

  std::shared_ptr<const TokenSource> source_;
  LoaderOptions options_;
  std::int64_t windows_;
};

/// Makes @p batch up to @p B sequences with sequences that count nothing: token 0, target -1.
/// @param batch  of at most @p B sequences.
void pad(Batch& batch, std::int64_t B);

/// Refuses data that are too short: a step needs G T + 1 tokens to train on, an evaluation T + 1.
/// @param tokens        the data of the run.
/// @param T             tokens a sequence.
/// @param global_batch  G.
/// Throws UserError: what is needed, what is there, and the options that change it.
void check_enough_tokens(const Tokens& tokens, std::int64_t T, std::int64_t global_batch);

/// Refuses data with a token that a model of @p vocabulary entries does not know.
/// Reads the data, in blocks, only when their own vocabulary is larger than the model's.
/// Throws UserError: the first such token and its position.
void check_vocabulary(const Tokens& tokens, std::int64_t vocabulary);

/// A token and where it stands.
struct TokenAt {
  std::int64_t position = 0;  ///< in its source
  Token token = 0;            ///< what stands there
};

/// The first token of @p source outside [0, @p vocabulary), read in blocks; nothing when all are inside.
std::optional<TokenAt> first_token_beyond(const TokenSource& source, std::int64_t vocabulary);

}  // namespace rankwise
