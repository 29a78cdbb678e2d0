#include "data/pair_loader.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/philox.hpp"
#include "common/base/text.hpp"

namespace rankwise {

namespace {

// Uses of the random numbers of a pair: the lowest bits of the second word of Philox's key.
constexpr std::uint32_t second_line = 0, masking = 1;

// [CLS], and [SEP] after each of the two lines.
constexpr std::int64_t specials_of_pair = 3;

// Devlin et al. 2018, section 3.1: 80 % of the chosen tokens become [MASK], 10 % a random token, 10 % stay.
constexpr double masked_share = 0.8, random_share = 0.1;

/// A number in [0, n) from 64 random bits; no value is more likely than another by more than n / 2^64.
std::int64_t below(std::int64_t n, std::uint32_t word_0, std::uint32_t word_1)
{
  const std::uint64_t bits = std::uint64_t{word_0} << 32 | word_1;
  return static_cast<std::int64_t>(bits % static_cast<std::uint64_t>(n));
}

/// Drops the last token of the longer line until both together have at most @p limit tokens.
void truncate(std::vector<Token>& a, std::vector<Token>& b, std::int64_t limit)
{
  while (a.size() + b.size() > static_cast<std::size_t>(limit)) (a.size() > b.size() ? a : b).pop_back();
}

}  // namespace

PairTokens pair_tokens(std::int64_t vocabulary)
{
  const auto first = static_cast<Token>(vocabulary);
  return {.pad = first, .cls = first + 1, .sep = first + 2, .mask = first + 3};
}

PairLoader::PairLoader(std::shared_ptr<const TokenSource> source, const Tokenizer& tokenizer,
                       const PairLoaderOptions& options)
    : lines_(std::move(source), tokenizer),
      tokens_(pair_tokens(tokenizer.vocabulary())),
      options_(options),
      order_(lines_.pairs(), options.seed, options.global_batch)
{
  check(options.T >= specials_of_pair + 2, "a pair needs three special tokens and a token of each line");
  check(0 <= options.masked && options.masked <= 1, "the share of masked tokens is no probability");
  check(pairs() >= 1, "the data have no two neighbouring lines");
}

void PairLoader::load(std::int64_t step, Range sequences, PairBatch& out) const
{
  resize(sequences.count, out);
  for (std::int64_t b = 0; b < sequences.count; ++b) {
    const std::int64_t sequence = sequences.first + b;
    const std::int64_t pair = order_.at(step, sequence);
    load_pair(pair,
              {.seed = options_.seed,
               .in_order = 0,
               .high = static_cast<std::uint32_t>(step),
               .low = static_cast<std::uint32_t>(sequence)},
              b, out);
  }
}

void PairLoader::load_in_order(Range pairs, PairBatch& out) const
{
  resize(pairs.count, out);
  for (std::int64_t b = 0; b < pairs.count; ++b) {
    const std::int64_t pair = pairs.first + b;
    load_pair(pair,
              {.seed = options_.seed,
               .in_order = 1,
               .high = static_cast<std::uint32_t>(pair >> 32),
               .low = static_cast<std::uint32_t>(pair)},
              b, out);
  }
}

std::int64_t PairLoader::predicted_in(std::int64_t step) const
{
  PairBatch batch;
  load(step, {0, options_.global_batch}, batch);
  return batch.predicted;
}

std::array<std::uint32_t, 4> PairLoader::Draws::words(std::uint32_t purpose, std::int64_t token) const
{
  return philox({static_cast<std::uint32_t>(token), low, high, in_order}, {seed, pair_purpose << 29 | purpose});
}

/// Makes @p out a batch of @p B pairs of [PAD].
void PairLoader::resize(std::int64_t B, PairBatch& out) const
{
  const auto rows = static_cast<std::size_t>(B), tokens = static_cast<std::size_t>(B * options_.T);
  out.B = B;
  out.T = options_.T;
  out.inputs.assign(tokens, tokens_.pad);
  out.segments.assign(tokens, 0);
  out.targets.assign(tokens, -1);
  out.lengths.assign(rows, 0);
  out.labels.assign(rows, 0);
  out.predicted = 0;
  out.pairs = B;
  out.padding = tokens_.pad;
}

/// Fills row @p b of @p out, which resize() has filled with [PAD].
void PairLoader::load_pair(std::int64_t pair, const Draws& draws, std::int64_t b, PairBatch& out) const
{
  // With probability 1/2 another line takes the place of the one that follows: any but that one.
  std::int64_t second = lines_.successor(pair);
  const auto words = draws.words(second_line, 0);
  const bool replaced = words[0] >> 31 != 0;
  if (replaced) {
    const std::int64_t other = below(lines_.lines() - 1, words[1], words[2]);
    second = other < second ? other : other + 1;
  }
  const std::int64_t limit = options_.T - specials_of_pair;
  std::vector<Token> line_a = lines_.read(pair, limit), line_b = lines_.read(second, limit);
  truncate(line_a, line_b, limit);

  const auto row = out.inputs.begin() + b * options_.T;
  auto next = row;
  *next++ = tokens_.cls;
  next = std::copy(line_a.begin(), line_a.end(), next);
  *next++ = tokens_.sep;
  const std::int64_t begin_b = next - row;
  next = std::copy(line_b.begin(), line_b.end(), next);
  *next++ = tokens_.sep;

  const std::int64_t length = next - row;
  const auto segments = out.segments.begin() + b * options_.T;
  std::fill(segments + begin_b, segments + length, 1);
  out.lengths[static_cast<std::size_t>(b)] = static_cast<Token>(length);
  out.labels[static_cast<std::size_t>(b)] = replaced ? 1 : 0;
  mask(draws, b, out);
}

/// Chooses the tokens of row @p b that are to be predicted, and masks them.
void PairLoader::mask(const Draws& draws, std::int64_t b, PairBatch& out) const
{
  const auto inputs = out.inputs.begin() + b * options_.T;
  const auto targets = out.targets.begin() + b * options_.T;
  const std::int64_t length = out.lengths[static_cast<std::size_t>(b)];
  const std::int64_t V = tokens_.pad;
  const auto is_special = [&](std::int64_t t) { return inputs[t] >= V; };

  // The token that draws the smallest number is chosen in any case.
  std::int64_t smallest = 0;
  std::uint32_t smallest_word = 0;
  for (std::int64_t t = 1; t < length; ++t) {
    const std::uint32_t word = draws.words(masking, t)[0];
    if (is_special(t) || (smallest > 0 && word >= smallest_word)) continue;
    smallest = t;
    smallest_word = word;
  }
  for (std::int64_t t = 1; t < length; ++t) {
    const auto words = draws.words(masking, t);
    if (is_special(t) || (t != smallest && uniform(words[0]) >= options_.masked)) continue;
    targets[t] = inputs[t];
    ++out.predicted;
    const double choice = uniform(words[1]);
    if (choice < masked_share) {
      inputs[t] = tokens_.mask;
    } else if (choice < masked_share + random_share) {
      inputs[t] = static_cast<Token>(below(V, words[2], words[3]));
    }
  }
}

void pad(PairBatch& batch, std::int64_t B)
{
  check(batch.B <= B, "a batch is larger than its padded size");
  const auto rows = static_cast<std::size_t>(B), tokens = static_cast<std::size_t>(B * batch.T);
  batch.B = B;
  batch.inputs.resize(tokens, batch.padding);
  batch.segments.resize(tokens, 0);
  batch.targets.resize(tokens, -1);
  batch.lengths.resize(rows, 1);
  batch.labels.resize(rows, -1);
}

void check_enough_pairs(const Tokens& tokens, std::int64_t T, std::int64_t global_batch)
{
  for (const bool train : {true, false}) {
    const char* const split = train ? "training" : "validation";
    const LineIndex lines(train ? tokens.train : tokens.validation, *tokens.tokenizer);
    if (lines.pairs() == 0) {
      throw UserError(
          fmt::format("{} has no conversation in its {} split: no two of its {} lines are neighbours.", tokens.name,
                      split, group_digits(lines.lines())),
          "A pair is two neighbouring lines of one conversation. Give --data a text with one utterance per "
          "line\nand an empty line between conversations.");
    }
    if (const std::int64_t needed = lines.shortest_pair() + specials_of_pair; T < needed) {
      throw UserError(
          fmt::format("--sequence={} is too short for the lines of {}: the shortest pair of its {} split "
                      "has {} tokens.",
                      T, tokens.name, split, group_digits(needed)),
          fmt::format("Three of them are special tokens. Use --sequence={} or more; longer pairs are "
                      "truncated.",
                      needed));
    }
    if (train && lines.pairs() < global_batch) {
      throw UserError(
          fmt::format("{} has {} pairs to train on, but one step needs --global-batch={}.", tokens.name,
                      group_digits(lines.pairs()), global_batch),
          fmt::format("Lower --global-batch to {} or less, or give a longer text with --data.", lines.pairs()));
    }
  }
}

}  // namespace rankwise
