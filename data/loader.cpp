#include "data/loader.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"

namespace rankwise {

void MemoryTokens::read(std::int64_t first, std::span<Token> out) const
{
  const auto count = static_cast<std::int64_t>(out.size());
  check(0 <= first && first + count <= size(), "tokens read beyond the end of the data");
  std::copy_n(tokens_.begin() + first, count, out.begin());
}

namespace {

/// W: number of windows of T tokens, each followed by its last target. Throws Error when there is none.
std::int64_t count_windows(const TokenSource& source, std::int64_t T)
{
  check(T >= 1, "a sequence needs a token");
  const std::int64_t windows = (source.size() - 1) / T;
  check(windows >= 1, "the data are shorter than one sequence and its last target");
  return windows;
}

}  // namespace

Loader::Loader(std::shared_ptr<const TokenSource> source, const LoaderOptions& options)
    : source_(std::move(source)),
      options_(options),
      order_(count_windows(*source_, options.T), options.seed, options.global_batch)
{
  check(0 <= options.uncounted_prefix && options.uncounted_prefix <= options.T,
        "the uncounted prefix is longer than the sequence");
}

void Loader::load(std::int64_t step, Range sequences, Batch& out) const
{
  resize(sequences.count, out);
  for (std::int64_t b = 0; b < sequences.count; ++b) load_window(window_of(step, sequences.first + b), b, out);
}

void Loader::load_in_order(Range windows, Batch& out) const
{
  check(windows.empty() || (0 <= windows.first && windows.end() <= order_.size()), "windows outside the data");
  resize(windows.count, out);
  for (std::int64_t b = 0; b < windows.count; ++b) load_window(windows.first + b, b, out);
}

void Loader::resize(std::int64_t B, Batch& out) const
{
  const std::int64_t T = options_.T;
  out.B = B;
  out.T = T;
  out.inputs.resize(static_cast<std::size_t>(B * T));
  out.targets.resize(static_cast<std::size_t>(B * T));
  out.valid_tokens = B * (T - options_.uncounted_prefix);
}

/// Fills row @p b of @p out: T inputs, and as targets the tokens shifted by one.
void Loader::load_window(std::int64_t window, std::int64_t b, Batch& out) const
{
  const std::int64_t T = options_.T;
  std::vector<Token> tokens(static_cast<std::size_t>(T + 1));
  source_->read(window * T, tokens);
  const auto targets = out.targets.begin() + b * T;
  std::copy_n(tokens.begin(), T, out.inputs.begin() + b * T);
  std::copy_n(tokens.begin() + 1, T, targets);
  std::fill_n(targets, options_.uncounted_prefix, -1);
}

void pad(Batch& batch, std::int64_t B)
{
  check(batch.B <= B, "a batch is larger than its padded size");
  batch.B = B;
  batch.inputs.resize(static_cast<std::size_t>(B * batch.T), 0);
  batch.targets.resize(static_cast<std::size_t>(B * batch.T), -1);
}

Batch tokens_of(const Batch& batch, Range tokens)
{
  Batch run{batch.B, tokens.count, {}, {}, 0};
  for (std::int64_t b = 0; b < batch.B; ++b) {
    const std::int64_t first = b * batch.T + tokens.first;
    run.inputs.insert(run.inputs.end(), batch.inputs.begin() + first, batch.inputs.begin() + first + tokens.count);
    run.targets.insert(run.targets.end(), batch.targets.begin() + first,
                       batch.targets.begin() + first + tokens.count);
  }
  run.valid_tokens =
      std::count_if(run.targets.begin(), run.targets.end(), [](Token target) { return target >= 0; });
  return run;
}

void check_enough_tokens(const Tokens& tokens, std::int64_t T, std::int64_t global_batch)
{
  const std::int64_t n = tokens.train->size();
  if (n < global_batch * T + 1) {
    const std::int64_t largest = (n - 1) / T;
    throw UserError(
        fmt::format("{} has {} tokens to train on, but one step needs {}.", tokens.name, group_digits(n),
                    group_digits(global_batch * T + 1)),
        fmt::format(
            "A step reads --global-batch={} sequences of --sequence={} tokens, and one token more as the last "
            "target.\nLower {}--sequence, or give a longer text with --data.",
            global_batch, T, largest >= 1 ? fmt::format("--global-batch to {} or less, lower ", largest) : ""));
  }
  if (tokens.validation->size() < T + 1) {
    throw UserError(fmt::format("{} has {} tokens for validation, but one sequence needs {}.", tokens.name,
                                group_digits(tokens.validation->size()), group_digits(T + 1)),
                    fmt::format("It reads --sequence={} tokens, and one token more as the last target.\n"
                                "Lower --sequence, or give a longer text with --data.",
                                T));
  }
}

std::optional<TokenAt> first_token_beyond(const TokenSource& source, std::int64_t vocabulary)
{
  constexpr std::int64_t block_size = 1 << 16;
  std::vector<Token> block;
  for (std::int64_t first = 0; first < source.size(); first += block_size) {
    block.resize(static_cast<std::size_t>(std::min(block_size, source.size() - first)));
    source.read(first, block);
    const auto beyond =
        std::find_if(block.begin(), block.end(), [&](Token token) { return token < 0 || token >= vocabulary; });
    if (beyond != block.end()) return TokenAt{first + (beyond - block.begin()), *beyond};
  }
  return std::nullopt;
}

void check_vocabulary(const Tokens& tokens, std::int64_t vocabulary)
{
  if (tokens.vocabulary <= vocabulary) return;
  for (const bool train : {true, false}) {
    const auto beyond = first_token_beyond(train ? *tokens.train : *tokens.validation, vocabulary);
    if (!beyond) continue;
    throw UserError(
        fmt::format("{} has the token {} at position {} of its {} split, which is outside the model's vocabulary.",
                    tokens.name, beyond->token, group_digits(beyond->position), train ? "training" : "validation"),
        fmt::format("The model's vocabulary is 0 to {}. Use --vocabulary={}, which is the data's, or other "
                    "data with --data.",
                    vocabulary - 1, tokens.vocabulary));
  }
}

}  // namespace rankwise
