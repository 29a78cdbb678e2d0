#include "common/base/error.hpp"
#include "data/tokenizer.hpp"
#include "tests/catch.hpp"
#include "tests/data/small_vocabulary.hpp"
#include "tests/scratch_folder.hpp"

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

TEST_CASE("read_vocabulary_files: OpenAI's names and Hugging Face's, with or without a byte-order mark")
{
  const VocabularyFiles small = small_vocabulary();
  const std::string mark = "\xEF\xBB\xBF";
  const ScratchFolder folder;
  make_file(folder / "vocab.json", mark + small.encoder_json);
  make_file(folder / "merges.txt", mark + small.vocab_bpe);
  CHECK(read_vocabulary_files(folder / ".").encoder_json == small.encoder_json);
  CHECK(read_vocabulary_files(folder / ".").vocab_bpe == small.vocab_bpe);
  make_file(folder / "merges.txt", "t h\n");
  CHECK_THROWS_WITH(make_tokenizer("gpt2", read_vocabulary_files(folder / ".")),
                    Contains("no line of merges.txt makes entry 257 of vocab.json, \"the\""));
  make_file(folder / "encoder.json", "ours");
  make_file(folder / "vocab.bpe", "\x1F\x8B\x08");
  CHECK_THROWS_WITH(read_vocabulary_files(folder / "."), Contains("has both encoder.json and vocab.json"));
  std::filesystem::remove(folder / "vocab.json");
  std::filesystem::remove(folder / "merges.txt");
  CHECK_THROWS_WITH(read_vocabulary_files(folder / "."),
                    Contains("vocab.bpe is not plain text") && Contains("gunzip"));
  make_file(folder / "encoder.json", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
  CHECK_THROWS_WITH(read_vocabulary_files(folder / "."),
                    Contains("encoder.json is not") && Contains("git lfs pull"));
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
