#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/partition.hpp"
#include "data/line_index.hpp"
#include "data/loader.hpp"
#include "data/permutation.hpp"

/// @file
/// Masked pairs: two lines of a text in one sequence, with tokens to predict and the question whether the second line
/// follows the first.

namespace rankwise {

/// The special tokens that pairs need, numbered after the V tokens of a tokenizer.
struct PairTokens {
  Token pad;   ///< [PAD] = V: fills a sequence after its pair
  Token cls;   ///< [CLS] = V + 1: begins each pair
  Token sep;   ///< [SEP] = V + 2: ends each line of a pair
  Token mask;  ///< [MASK] = V + 3: stands where a token is to be predicted
};

/// Number of special tokens.
constexpr std::int64_t special_tokens = 4;

/// The three highest bits of the second word of Philox's key, in all random numbers of pairs. The purposes of
/// gpt2/random.hpp, which stand in the same bits, are smaller. So no number of a pair is also one of a dropout or an
/// initial value of the same seed.
constexpr std::uint32_t pair_purpose = 5;

/// The special tokens of a tokenizer with @p vocabulary tokens (`Tokens::vocabulary`).
PairTokens pair_tokens(std::int64_t vocabulary);

/// One micro-batch of B pairs of T tokens: [CLS] a [SEP] b [SEP] [PAD] ...
struct PairBatch {
  std::int64_t B = 0;           ///< pairs
  std::int64_t T = 0;           ///< tokens per pair
  std::vector<Token> inputs;    ///< (B, T) after masking, every token in [0, V + special_tokens)
  std::vector<Token> segments;  ///< (B, T) 0 for [CLS] a [SEP] and padding, 1 for b [SEP]
  std::vector<Token> targets;   ///< (B, T) the token that stood where something is to be predicted; -1 elsewhere
  std::vector<Token> lengths;   ///< (B) tokens before the padding
  std::vector<Token> labels;    ///< (B) 0: b follows a; 1: b is from another place; -1: not counted
  std::int64_t predicted = 0;   ///< number of targets that are counted
  std::int64_t pairs = 0;       ///< number of labels that are counted
  Token padding = 0;            ///< the token [PAD], for pad()
};

/// The shape, the order and the masks of a PairLoader's batches.
struct PairLoaderOptions {
  std::int64_t T = 0;             ///< tokens per pair with its special tokens, >= 5
  std::int64_t global_batch = 1;  ///< G: pairs per step over all devices, >= 1
  std::uint32_t seed = 0;         ///< seed of the order, the second lines and the masks
  double masked = 0.15;           ///< probability that a token is to be predicted, in [0, 1]
};

/// Loads pairs of lines in random order, masked as BERT's are.
///
/// A pair (a, b) is two neighbouring lines of one conversation (LineIndex). TrainingOrder(pairs, seed, G) says which
/// pair is which sequence of which step. Three choices follow:
///
/// - With probability 1/2, b is replaced by a line drawn from all lines of the split but the true b (label 1). It may be
///   a line of the same conversation, even a itself.
/// - A pair of more than T - 3 tokens is truncated: the longer of the two lines (b, if they are equal) loses its last
///   token until the pair fits.
/// - Each token of a and b is chosen with probability `masked`, and in any case the one that drew the smallest number,
///   so each pair has a target. Of the chosen, 80 % become [MASK], 10 % a token drawn from all V, and 10 % stay.
///
/// Each random number is a function of seed, purpose, step, sequence and token, so nothing depends on how a batch is
/// divided.
/// @source  Devlin et al. 2018, arXiv:1810.04805, section 3.1 and appendices A.1 and A.2. Their program for
///          pre-training drops tokens from either end of the longer line, the one for fine-tuning from its end, as here.
class PairLoader {
 public:
  /// Reads @p source once, to find its lines.
  /// @param source     text of conversations with at least one pair, else Error is thrown.
  /// @param tokenizer  the tokenizer that encoded it.
  /// @param options    see PairLoaderOptions.
  PairLoader(std::shared_ptr<const TokenSource> source, const Tokenizer& tokenizer,
             const PairLoaderOptions& options);

  /// Number of pairs of neighbouring lines in the split: one epoch.
  std::int64_t pairs() const { return order_.size(); }
  /// Number of steps, rounded up, after which every pair has been visited @p epochs times.
  std::int64_t steps(std::int64_t epochs) const { return order_.steps(epochs); }

  /// Fills @p out with sequences @p sequences of the global batch of step @p step.
  /// @param[in]  step       >= 0, less than 2^32.
  /// @param[in]  sequences  inside [0, G); B = sequences.count.
  /// @param[out] out        resized to (B, T); its memory is reused from call to call.
  void load(std::int64_t step, Range sequences, PairBatch& out) const;

  /// Fills @p out with pairs @p pairs in the order of the text, for evaluation. Masks, labels and replaced lines depend
  /// on the seed and the number of the pair alone, so each evaluation sees the same.
  /// @param[in]  pairs  inside [0, pairs()), or none; B = pairs.count.
  /// @param[out] out    resized to (B, T).
  void load_in_order(Range pairs, PairBatch& out) const;

  /// Number of targets in the whole global batch of step @p step, which each device can compute without a message.
  /// @cost  as load() of G pairs.
  std::int64_t predicted_in(std::int64_t step) const;

 private:
  /// Source of the random numbers of a pair: words of Philox's counter.
  struct Draws {
    std::uint32_t seed;
    std::uint32_t in_order;  ///< 0 in training, 1 in evaluation
    std::uint32_t high;      ///< step, or the pair's number divided by 2^32
    std::uint32_t low;       ///< sequence, or the rest of the pair's number

    /// Four random words for @p purpose, one of those in pair_loader.cpp, at token @p token.
    std::array<std::uint32_t, 4> words(std::uint32_t purpose, std::int64_t token) const;
  };

  void resize(std::int64_t B, PairBatch& out) const;
  void load_pair(std::int64_t pair, const Draws& draws, std::int64_t b, PairBatch& out) const;
  void mask(const Draws& draws, std::int64_t b, PairBatch& out) const;

  LineIndex lines_;
  PairTokens tokens_;
  PairLoaderOptions options_;
  TrainingOrder order_;
};

/// Pads @p batch to @p B pairs with pairs that are not counted: all [PAD], length 1, so that attention sees one key,
/// and label -1.
/// @param batch  a batch of at most @p B pairs that a PairLoader has filled.
void pad(PairBatch& batch, std::int64_t B);

/// Refuses data that give too few pairs: a step needs @p global_batch of them to train on, an evaluation one. Refuses
/// sequences of @p T tokens for which every pair of a split would be truncated.
/// @param tokens        the data of the run.
/// @param T             tokens per pair with its special tokens.
/// @param global_batch  G.
/// Throws UserError with the number needed, the number present, and the options that change it.
/// @cost  reads both splits once.
void check_enough_pairs(const Tokens& tokens, std::int64_t T, std::int64_t global_batch);

}  // namespace rankwise
