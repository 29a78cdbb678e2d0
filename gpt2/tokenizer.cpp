#include "gpt2/tokenizer.hpp"

#include <fmt/format.h>

#include "common/error.hpp"
#include "common/text.hpp"

namespace rankwise {

std::vector<Token> ByteTokenizer::encode(std::string_view text) const
{
  std::vector<Token> tokens(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) tokens[i] = static_cast<unsigned char>(text[i]);
  return tokens;
}

std::string ByteTokenizer::decode(std::span<const Token> tokens) const
{
  std::string text(tokens.size(), '\0');
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    check(0 <= tokens[i] && tokens[i] < vocabulary(), fmt::format("token {} is not a byte", tokens[i]));
    text[i] = static_cast<char>(tokens[i]);
  }
  return text;
}

std::vector<std::string> tokenizer_names()
{
  return {ByteTokenizer().name()};
}

std::unique_ptr<const Tokenizer> make_tokenizer(const std::string& name)
{
  if (name == ByteTokenizer().name()) return std::make_unique<ByteTokenizer>();
  throw UserError(fmt::format("--tokenizer={} is not known.", name),
                  fmt::format("Use --tokenizer={}.", one_of(tokenizer_names())));
}

}  // namespace rankwise
