#include "common/base/error.hpp"
#include "data/tokenizer.hpp"
#include "tests/catch.hpp"
#include "tests/data/small_vocabulary.hpp"

using namespace rankwise;

TEST_CASE("ByteTokenizer: every byte is its own token, and comes back")
{
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text += static_cast<char>(byte);
  const ByteTokenizer tokenizer;
  const std::vector<Token> tokens = tokenizer.encode(text);
  REQUIRE(tokens.size() == 256);
  for (Token token = 0; token < 256; ++token) CHECK(tokens[static_cast<std::size_t>(token)] == token);
  CHECK(tokenizer.decode(tokens) == text);
  CHECK(tokenizer.vocabulary() == 256);
  CHECK(tokenizer.encode("").empty());
  CHECK(tokenizer.last_cut(text, 0) == 256);
}

TEST_CASE("ByteTokenizer: a token that is no byte is an error")
{
  const ByteTokenizer tokenizer;
  CHECK_THROWS_AS(tokenizer.decode(std::vector<Token>{65, 256}), Error);
  CHECK_THROWS_AS(tokenizer.decode(std::vector<Token>{-1}), Error);
}

TEST_CASE("make_tokenizer: knows its names, and refuses others with the choices")
{
  for (const std::string& name : tokenizer_names()) {
    const VocabularyFiles files = needs_vocabulary_files(name) ? small_vocabulary() : VocabularyFiles{};
    CHECK(make_tokenizer(name, files)->name() == name);
  }
  CHECK_THROWS_AS(make_tokenizer("bytes"), UserError);
  CHECK_THROWS_WITH(make_tokenizer("bytes"), Contains("--tokenizer=bytes") && Contains("=byte or gpt2."));
}
