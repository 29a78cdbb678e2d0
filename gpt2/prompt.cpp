#include "gpt2/prompt.hpp"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/files/plain_text.hpp"

namespace rankwise {

namespace {

std::string content_of(const std::string& path)
{
  const FileRequest request{
      .asked = "--prompt-file=" + path,
      .remedy = "A prompt has at least one byte and at most a million; the model sees its last tokens."};
  const std::string text = whole_text(path, request, 1'000'000);
  if (text.empty()) throw UserError(request.asked + " is empty.", request.remedy);
  return text;
}

}  // namespace

void take_prompt(TrainingOptions& options)
{
  if (!options.prompt_file.empty()) options.prompt_text = content_of(options.prompt_file);
}

std::vector<Token> prompt_of(const TrainingOptions& options, const Tokenizer& tokenizer)
{
  const std::string& text = options.prompt_file.empty() ? options.prompt : options.prompt_text;
  return tokenizer.encode(text.empty() ? "\n" : text);
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
