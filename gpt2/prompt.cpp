#include "gpt2/prompt.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"
#include "common/files/plain_text.hpp"

namespace rankwise {

namespace {

constexpr std::size_t longest_prompt_bytes = 1'000'000;

std::string content_of(const std::string& path)
{
  std::ifstream file(path, std::ios::binary);
  std::string text;
  text.resize(longest_prompt_bytes + 1);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (!file.eof() && text.size() <= longest_prompt_bytes)
    throw UserError(fmt::format("--prompt-file={} cannot be read{}.", path, looked_for(path)),
                    "Name a file with the text of the prompt.");
  text = without_mark(text, {.asked = "--prompt-file=" + path, .remedy = "The model sees the text's last tokens."});
  if (text.empty() || text.size() > longest_prompt_bytes)
    throw UserError(
        fmt::format("--prompt-file={} {}.", path, text.empty() ? "is empty" : "has more than 1,000,000 bytes"),
        "A prompt has at least one byte and at most a million; the model sees its last tokens.");
  return text;
}

}  // namespace

std::vector<Token> prompt_of(const TrainingOptions& options, const Tokenizer& tokenizer)
{
  if (!options.prompt_file.empty()) return tokenizer.encode(content_of(options.prompt_file));
  return tokenizer.encode(options.prompt.empty() ? "\n" : options.prompt);
}

std::optional<Token> stop_token(const TrainingOptions& options, const Tokenizer& tokenizer)
{
  if (options.stop.empty()) return {};
  const std::vector<Token> tokens = tokenizer.encode(options.stop);
  if (tokens.size() != 1)
    throw UserError(fmt::format("--stop={} is {} tokens of the tokenizer \"{}\".", options.stop, tokens.size(),
                                tokenizer.name()),
                    "A sample ends after one token. Use the text of a single token, as a full stop or a line end.");
  return tokens.front();
}

void check_prompt(const TrainingOptions& options, const Tokens& tokens)
{
  if (options.sample == 0) return;
  const std::int64_t known = options.config().vocabulary, written = tokens.tokenizer->vocabulary();
  if (known > written)
    throw UserError(
        fmt::format("--sample={} may draw tokens up to {}, the last of the model's vocabulary, and the tokenizer "
                    "\"{}\" of {} has text for 0 to {}.",
                    options.sample, known - 1, tokens.tokenizer->name(), tokens.name, written - 1),
        fmt::format("Use --vocabulary={}, which is the tokenizer's, or train without --sample.", written));
  std::vector<Token> asked = prompt_of(options, *tokens.tokenizer);
  if (const auto stop = stop_token(options, *tokens.tokenizer)) asked.push_back(*stop);
  if (const Token largest = std::ranges::max(asked); largest >= known)
    throw UserError(
        fmt::format("--sample={} begins or ends with the token {}, which is outside the model's vocabulary.",
                    options.sample, largest),
        fmt::format("A sample begins with --prompt or a line end. Use --vocabulary={} or more, or train "
                    "without --sample.",
                    largest + 1));
}

}  // namespace rankwise
