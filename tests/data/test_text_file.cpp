#include <random>
#include <string>

#include "common/base/error.hpp"
#include "data/bpe.hpp"
#include "data/text_file.hpp"
#include "tests/catch.hpp"
#include "tests/data/small_vocabulary.hpp"
#include "tests/scratch_folder.hpp"

using namespace rankwise;

namespace {

/// Makes a token file of @p text and gives what it reads back: the two parts as text.
std::pair<std::string, std::string> prepared(const std::string& text, const std::string& name = "byte",
                                             const VocabularyFiles& files = {})
{
  const ScratchFolder folder;
  make_file(folder / "text.txt", text);
  const TextMeasure measure = measure_text(folder / "text.txt");
  const std::unique_ptr<const Tokenizer> tokenizer = make_tokenizer(name, files);
  TokenFileWriter writer(folder / "text.h5", {.vocabulary = tokenizer->vocabulary(),
                                              .tokenizer = name,
                                              .source = "text.txt",
                                              .source_sha256 = measure.sha256,
                                              .files = files});
  std::int64_t read = 0;
  write_tokens(folder / "text.txt", measure, *tokenizer, writer, [&](std::int64_t bytes) { read = bytes; });
  CHECK(read == measure.bytes);
  writer.finish();
  const Tokens tokens = open_token_file(folder / "text.h5");
  std::vector<Token> train(static_cast<std::size_t>(tokens.train->size()));
  std::vector<Token> validation(static_cast<std::size_t>(tokens.validation->size()));
  tokens.train->read(0, train);
  tokens.validation->read(0, validation);
  return {tokens.tokenizer->decode(train), tokens.tokenizer->decode(validation)};
}

/// The tokens of @p text, which comes in blocks of @p size bytes.
std::vector<Token> encoded_in_blocks(const Tokenizer& tokenizer, std::string_view text, std::size_t size)
{
  std::vector<Token> all;
  BlockEncoder encoder(tokenizer,
                       [&](std::span<const Token> tokens) { all.insert(all.end(), tokens.begin(), tokens.end()); });
  for (; !text.empty(); text.remove_prefix(std::min(size, text.size()))) encoder.add(text.substr(0, size));
  encoder.finish();
  return all;
}

}  // namespace

TEST_CASE("take_characters: a byte that continues a character goes with it, also across pieces")
{
  std::int64_t left = 2;
  CHECK(take_characters("a\xC3\xA9"
                        "b",
                        left) == 3);  // a, e with an accent in two bytes, then b
  CHECK(left == 0);
  left = 2;
  CHECK(take_characters("a\xC3", left) == 2);
  CHECK(left == 0);
  CHECK(take_characters("\xA9"
                        "b",
                        left) == 1);  // the rest of the second character
  CHECK(take_characters("", left) == 0);
  left = 100;
  CHECK(take_characters("abc", left) == 3);
  CHECK(left == 97);
}

TEST_CASE("measure_text: counts characters, not bytes")
{
  const ScratchFolder folder;
  make_file(folder / "text.txt",
            "gr\xC3\xBC\xC3\x9F"
            "e \xE2\x82\xAC\n");  // gruesse, a blank, the euro sign, newline
  const TextMeasure measure = measure_text(folder / "text.txt");
  CHECK(measure.bytes == 12);
  CHECK(measure.characters == 8);
  CHECK(measure.train_characters() == 7);
  make_file(folder / "abc.txt", "abc");
  CHECK(measure_text(folder / "abc.txt").sha256 ==  // FIPS 180-2, appendix B.1
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_CASE("measure_text: refuses what is no text file")
{
  const ScratchFolder folder;
  CHECK_THROWS_AS(measure_text(folder / "missing.txt"), UserError);
  CHECK_THROWS_WITH(measure_text(folder / "missing.txt"), Contains("does not exist"));
  CHECK_THROWS_WITH(measure_text(folder / "."), Contains("not a regular file"));
  make_file(folder / "empty.txt", "");
  CHECK_THROWS_AS(measure_text(folder / "empty.txt"), UserError);
  CHECK_THROWS_WITH(measure_text(folder / "empty.txt"), Contains("is empty"));
}

TEST_CASE("measure_text: refuses what looks like another kind of file, and says how text is made of it")
{
  const ScratchFolder folder;
  const std::pair<std::string, std::string> kinds[] = {
      {{"\xFF\xFE"
        "a\0b\0",
        6},
       "iconv -f UTF-16 "},
      {{"\xFE\xFF\0a\0b", 6}, "iconv -f UTF-16 "},
      {{"a\0b\0c\0", 6}, "iconv -f UTF-16LE"},
      {{"\0a\0b\0c", 6}, "iconv -f UTF-16BE"},
      {{"\xFF\xFE\0\0a\0\0\0", 8}, "iconv -f UTF-32"},
      {"\x1F\x8B\x08", "gunzip"},
      {"\x28\xB5\x2F\xFD$", "unzstd"},
      {"PK\x03\x04", "unzip"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"},
      {"\x89RANKWISE\r\n\x1A\n", "a token file"},
      {"\xEF\xBB\xBF<!DOCTYPE html>", "Make text of it: pandoc --from=html"},
      {"<html lang=\"en\">", "it looks like HTML"},
      {"{\\rtf1\\ansi", "unrtf --text"},
      {"text" + std::string(9, '\0'), "9 zero bytes, the first after 4 others"},
      {"late" + std::string(1 << 21, ' ') + std::string(1, '\0'),
       "1 zero bytes, the first after 2,097,156 others"}};
  for (const auto& [content, words] : kinds) {
    make_file(folder / "text.txt", content);
    CHECK_THROWS_AS(measure_text(folder / "text.txt"), UserError);
    CHECK_THROWS_WITH(measure_text(folder / "text.txt"), Contains(words));
  }
}

TEST_CASE("measure_text: notes what a user may not expect, also where blocks meet")
{
  const ScratchFolder folder;
  const auto notes = [&](const std::string& content) {
    make_file(folder / "text.txt", content);
    return measure_text(folder / "text.txt").notes;
  };
  CHECK(notes("gr\xC3\xBC\xC3\x9F"
              "e\n") == "");
  CHECK_THAT(notes("caf\xE9"), Contains("1 bytes are not UTF-8") && Contains("iconv -f CODING"));
  CHECK_THAT(notes("\xC3\xBC\xC3"), Contains("1 bytes are not UTF-8"));
  CHECK_THAT(notes("a\r\nb\r\n"), Contains("2 lines end with CR LF") && !Contains("CR alone"));
  CHECK_THAT(notes("a\rb\rc"), Contains("2 lines end with CR alone") && Contains("tr '\\r' '\\n'"));
  CHECK(notes("a\rb\n").empty());
  for (const std::string blank : {"\u00A0", "\u200B", "\u3000", "\f"})
    CHECK_THAT(notes("one\n" + blank + "\ntwo\n" + blank + blank + "\n"),
               Contains("1 lines hold nothing but a blank that is no space"));
  CHECK_THAT(notes("one\u2028two\u0085"), Contains("2 characters separate lines (U+2028 or U+0085)"));
  CHECK_THAT(notes("\uFEFFone\uFEFFtwo\uFEFF"), Contains("2 byte-order marks"));
  for (std::size_t before = (1 << 20) - 14; before <= 1 << 20; ++before)
    CHECK_THAT(notes(std::string(before, '-') + "<|endoftext|>\r\n"),
               Contains("1 times <|endoftext|> occurs") && Contains("1 lines end") && !Contains("UTF-8"));
}

TEST_CASE("write_tokens: a byte-order mark is no part of the text; line ends stay as they are")
{
  CHECK(prepared("\xEF\xBB\xBF"
                 "0123456789") == prepared("0123456789"));
  CHECK(prepared("\r\n\xEF\xBB\xBF").first == "\r\n");
}

TEST_CASE("write_tokens: the last tenth of the characters is for validation, and no character is cut")
{
  CHECK(prepared("0123456789") == std::pair<std::string, std::string>("012345678", "9"));
  CHECK(prepared("0123456789a") == std::pair<std::string, std::string>("012345678", "9a"));
  CHECK(prepared("x") == std::pair<std::string, std::string>("", "x"));
  const std::string e = "\xC3\xA9";
  CHECK(prepared(e + e + e + e + e + e + e + e + e + e).first.size() == 18);
  CHECK(prepared("\x80\x80\x80").first.size() + prepared("\x80\x80\x80").second.size() ==
        3);  // not UTF-8: still whole
}

TEST_CASE("write_tokens: the tokens do not depend on the blocks, also where these cut a character")
{
  const std::string characters[] = {"a", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\xA6\x89"};
  for (std::size_t shift = 0; shift < 8; ++shift) {
    // The cut falls into the second block, or (shift 4 to 7) into the first, before blocks that begin inside characters.
    const std::size_t size = shift < 4 ? 5u << 18 : (1u << 20) + 1000;
    std::string text(shift, '-');
    std::size_t count = shift;
    for (; text.size() < size; ++count) text += characters[(count * count + count / 7) % 4];
    std::size_t cut = 0;  // the first byte of character 9/10 count
    for (std::size_t left = count * 9 / 10; left > 0; --left) {
      do ++cut;
      while ((static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80);
    }
    const auto [train, validation] = prepared(text);
    CHECK(train.size() == cut);
    CHECK((train + validation == text));
  }
}

TEST_CASE("BlockEncoder: the tokens are those of the whole text, however small the blocks")
{
  const BpeTokenizer tokenizer(small_vocabulary());
  const std::string pieces[] = {"the owl's", " ", "\n",       "12",           "aaaa", "'",
                                "s",         "!", "\xC3\xA9", "\xE3\x80\x80", "\xFF", "\xE2\x82"};
  std::mt19937 random(13);
  for (int round = 0; round < 100; ++round) {
    std::string text;
    while (text.size() < 300) text += pieces[random() % std::size(pieces)];
    const std::vector<Token> whole = tokenizer.encode(text);
    for (std::size_t size = 1; size < 10; ++size) CHECK(encoded_in_blocks(tokenizer, text, size) == whole);
  }
  CHECK(encoded_in_blocks(ByteTokenizer(), "the owl", 2) == ByteTokenizer().encode("the owl"));
}

TEST_CASE("BlockEncoder: real text in blocks has the same tokens")
{
  const std::string path = real_data("wikitext-2/valid.txt"), vocabulary = real_data("gpt2");
  if (path.empty() || vocabulary.empty()) {
    WARN("skipped: wikitext-2/valid.txt or gpt2 is not in the folder that RANKWISE_DATA names");
    return;
  }
  const BpeTokenizer tokenizer(read_vocabulary_files(vocabulary));
  const std::string text = read_file(path).substr(0, 300'000);
  const std::vector<Token> whole = tokenizer.encode(text);
  for (const std::size_t size : {7u, 100u, 4096u, 65'536u}) {
    CHECK((encoded_in_blocks(tokenizer, text, size) == whole));
  }
}

TEST_CASE("BlockEncoder: a word that does not end is an error, and not all of memory")
{
  const BpeTokenizer tokenizer(small_vocabulary());
  BlockEncoder encoder(tokenizer, [](std::span<const Token>) {});
  const std::string block(8 << 20, 'a');
  for (int i = 0; i < 8; ++i) encoder.add(block);
  CHECK_THROWS_WITH(encoder.add(block), Contains("one word"));
}

TEST_CASE("write_tokens: the token file brings GPT-2's vocabulary along")
{
  const std::string text = "the owl sees the other owl, and the mouse sees neither.";
  const auto [train, validation] = prepared(text, "gpt2", small_vocabulary());
  CHECK(train.size() == 49);
  CHECK(train + validation == text);
}

TEST_CASE("write_tokens: a text that changed after it was measured is an error")
{
  const ScratchFolder folder;
  make_file(folder / "text.txt", "some text");
  const TextMeasure measure = measure_text(folder / "text.txt");
  make_file(folder / "text.txt", "some test");
  TokenFileWriter writer(folder / "text.h5",
                         {.vocabulary = 256, .tokenizer = "byte", .source = "", .source_sha256 = ""});
  CHECK_THROWS_AS(write_tokens(folder / "text.txt", measure, ByteTokenizer(), writer, [](auto) {}), Error);
}

TEST_CASE("write_tokens: Tiny Shakespeare is split as in other projects")
{
  const std::string path = real_data("tinyshakespeare.txt");
  if (path.empty()) {
    WARN("skipped: tinyshakespeare.txt is not in the folder that RANKWISE_DATA names");
    return;
  }
  CHECK(measure_text(path).characters == 1'115'394);
  const auto [train, validation] = prepared(read_file(path));
  CHECK(train.size() == 1'003'854);  // as nanoGPT's data/shakespeare_char
  CHECK(validation.size() == 111'540);
  CHECK((train + validation == read_file(path)));
}
