#include <map>
#include <optional>
#include <random>

#include "common/base/error.hpp"
#include "data/bpe.hpp"
#include "tests/catch.hpp"
#include "tests/data/small_vocabulary.hpp"
#include "tests/fuzz.hpp"
#include "tests/scratch_folder.hpp"

using namespace rankwise;

namespace {

std::string random_bytes(std::mt19937& random, std::size_t size, const std::string& alphabet = "")
{
  std::string text(size, '\0');
  for (char& byte : text)
    byte = alphabet.empty() ? static_cast<char>(random()) : alphabet[random() % alphabet.size()];
  return text;
}

/// Characters of all kinds, and bytes that are none.
std::string random_text(std::mt19937& random, std::size_t pieces)
{
  static const std::vector<std::string> kinds = {"a",
                                                 "owl",
                                                 "the",
                                                 " ",
                                                 " ",
                                                 "\n",
                                                 "\t",
                                                 "'s",
                                                 "'",
                                                 "'ll",
                                                 "1",
                                                 "12",
                                                 "!",
                                                 "-",
                                                 "\xC3\xA9",
                                                 "\xE2\x82\xAC",
                                                 "\xC2\xA0",
                                                 "\xE3\x80\x80",
                                                 "\xE2\x80\x83",
                                                 "\xF0\x9F\xA6\x89",
                                                 "\xD0\x96",
                                                 "\xD9\xA3",
                                                 "\xE6\xBC\xA2",
                                                 "\xFF",
                                                 "\xC3",
                                                 "\x80",
                                                 "\xE2\x82",
                                                 "\xED\xA0\x80",
                                                 "\xF4\x90\x80\x80",
                                                 std::string(1, '\0')};
  std::string text;
  for (std::size_t i = 0; i < pieces; ++i) text += kinds[random() % kinds.size()];
  return text;
}

std::vector<std::string> pieces_of(const std::string& text)
{
  std::vector<std::string> pieces;
  Pretokenizer().cut(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

/// GPT-2's tokenizer, if its vocabulary has been fetched.
std::unique_ptr<const BpeTokenizer> gpt2_tokenizer()
{
  const std::string folder = real_data("gpt2");
  if (folder.empty()) {
    WARN("skipped: gpt2/encoder.json is not in the folder that RANKWISE_DATA names");
    return nullptr;
  }
  return std::make_unique<BpeTokenizer>(read_vocabulary_files(folder));
}

void check_refused(const VocabularyFiles& files, const std::string& words)
{
  CHECK_THROWS_AS(BpeTokenizer(files), UserError);
  CHECK_THROWS_WITH(BpeTokenizer(files), Contains(words) && Contains("fetch_data.sh"));
}

/// The vocabulary after one text in encoder.json was replaced by another.
VocabularyFiles replaced(const std::string& from, const std::string& to)
{
  VocabularyFiles files = small_vocabulary();
  const std::size_t place = files.encoder_json.find(from);
  REQUIRE(place != std::string::npos);
  files.encoder_json.replace(place, from.size(), to);
  return files;
}

}  // namespace

// ---- Pieces ---------------------------------------------------------------------------------------------------------

TEST_CASE("Pretokenizer: words, numbers, signs, white space, contractions")
{
  using Pieces = std::vector<std::string>;
  CHECK(pieces_of("the owl") == Pieces{"the", " owl"});
  CHECK(pieces_of("12 owls, 3!") == Pieces{"12", " owls", ",", " 3", "!"});
  CHECK(pieces_of("I'll don't 'S we've's") == Pieces{"I", "'ll", " don", "'t", " '", "S", " we", "'ve", "'s"});
  CHECK(pieces_of("a  b \n\n c ") == Pieces{"a", " ", " b", " \n\n", " c", " "});
  CHECK(pieces_of("a\n\tb") == Pieces{"a", "\n", "\t", "b"});
  CHECK(pieces_of("\xC3\xA9t\xC3\xA9\xC2\xA0x") ==
        Pieces{"\xC3\xA9t\xC3\xA9", "\xC2\xA0", "x"});                 // U+00A0 is white
  CHECK(pieces_of("\xE1\xA0\x8E a") == Pieces{"\xE1\xA0\x8E", " a"});  // U+180E is not
  CHECK(pieces_of("").empty());
}

TEST_CASE("Pretokenizer: letters and numbers that are newer than PCRE2's tables")
{
  using Pieces = std::vector<std::string>;
  CHECK(pieces_of("a\xF0\xB1\x8D\x90!") == Pieces{"a\xF0\xB1\x8D\x90", "!"});  // U+31350, Unicode 15.0, a letter
  CHECK(pieces_of("a\xE1\xB2\x8A!") == Pieces{"a\xE1\xB2\x8A", "!"});          // U+1C8A, Unicode 16.0, a letter
  CHECK(pieces_of("7\xF0\x9E\x93\xB9!") == Pieces{"7\xF0\x9E\x93\xB9", "!"});  // U+1E4F9, Unicode 15.0, a number
  CHECK(pieces_of("a\xE1\xB2\x8B!") == Pieces{"a", "\xE1\xB2\x8B!"});          // U+1C8B is not assigned
}

TEST_CASE("Pretokenizer: bytes that are not UTF-8 are pieces of their own")
{
  using Pieces = std::vector<std::string>;
  CHECK(pieces_of("a\xFF\xFE"
                  "b") == Pieces{"a", "\xFF\xFE", "b"});
  CHECK(pieces_of("\xE2\x82") == Pieces{"\xE2\x82"});                // cut short
  CHECK(pieces_of("\xC0\xAF!") == Pieces{"\xC0\xAF", "!"});          // overlong
  CHECK(pieces_of("\xE0\x9F\xBF!") == Pieces{"\xE0\x9F\xBF", "!"});  // overlong
  CHECK(pieces_of("\xED\xA0\x80!") == Pieces{"\xED\xA0\x80", "!"});  // a surrogate
  CHECK(pieces_of("\xF4\x90\x80\x80"
                  "a") == Pieces{"\xF4\x90\x80\x80", "a"});  // beyond U+10FFFF
  CHECK(pieces_of("\xF0\x8F\xBF\xBF"
                  "a") == Pieces{"\xF0\x8F\xBF\xBF", "a"});  // overlong
  CHECK(pieces_of("\xF4\x8F\xBF\xBF\xEF\xBF\xBF") ==
        Pieces{"\xF4\x8F\xBF\xBF\xEF\xBF\xBF"});  // the last of each length
}

TEST_CASE("Pretokenizer: a cut is a border between pieces, whatever follows")
{
  const Pretokenizer pretokenizer;
  std::mt19937 random(3);
  int cuts = 0;
  for (int round = 0; round < 5000; ++round) {
    const std::string text = random_text(random, 1 + random() % 12);
    const std::size_t cut = pretokenizer.last_cut(text, 0);
    if (cut == 0) continue;
    ++cuts;
    const std::string whole = text + random_text(random, random() % 6);
    std::vector<std::string> pieces = pieces_of(whole.substr(0, cut));
    for (std::string& piece : pieces_of(whole.substr(cut))) pieces.push_back(std::move(piece));
    CHECK((pieces == pieces_of(whole)));
  }
  CHECK(cuts > 3000);
}

TEST_CASE("Pretokenizer: the last cut is found far from the end, and bytes that are known are left out")
{
  const Pretokenizer pretokenizer;
  CHECK(pretokenizer.last_cut("the owl sees", 0) == 7);
  CHECK(pretokenizer.last_cut("owl2", 0) == 3);
  CHECK(pretokenizer.last_cut("2owl", 0) == 1);
  CHECK(pretokenizer.last_cut("owl ", 0) == 3);
  CHECK(pretokenizer.last_cut("!owl", 0) == 0);  // it might be an apostrophe
  CHECK(pretokenizer.last_cut(" owl", 0) == 0);
  const std::string letters(100'000, 'a');
  CHECK(pretokenizer.last_cut("owl " + letters, 0) == 3);
  CHECK(pretokenizer.last_cut("owl " + letters, 50'000) == 0);
  CHECK(pretokenizer.last_cut(letters + "!", letters.size()) == letters.size());
  CHECK(pretokenizer.last_cut("\xC3\xA9\xE3\x80\x80", 2) == 2);
}

// ---- Merges ---------------------------------------------------------------------------------------------------------

TEST_CASE("spelling_of_byte: as GPT-2 spells them")
{
  CHECK(spelling_of_byte('a') == "a");
  CHECK(spelling_of_byte('~') == "~");
  CHECK(spelling_of_byte(0) == "\xC4\x80");     // U+0100
  CHECK(spelling_of_byte(' ') == "\xC4\xA0");   // U+0120
  CHECK(spelling_of_byte('\n') == "\xC4\x8A");  // U+010A
  CHECK(spelling_of_byte(0xAD) == "\xC5\x83");  // U+0143, the last
  CHECK(spelling_of_byte(0xFF) == "\xC3\xBF");
}

TEST_CASE("BpeTokenizer: the merges of a small vocabulary")
{
  const BpeTokenizer tokenizer(small_vocabulary());
  using Tokens = std::vector<Token>;
  CHECK(tokenizer.name() == "gpt2");
  CHECK(tokenizer.vocabulary() == 256 + 12 + 1);
  CHECK(tokenizer.encode("the the") == Tokens{257, 258});
  CHECK(tokenizer.encode("owl's") == Tokens{260, 267});
  CHECK(tokenizer.encode("aaaaaaa") == Tokens{265, 264, 'a'});  // from the left
  CHECK(tokenizer.encode("").empty());
  CHECK(tokenizer.encode("<|endoftext|>").size() == 13);  // text, not the end of one
  CHECK(tokenizer.decode(Tokens{268, 258}) == "<|endoftext|> the");
  CHECK_THROWS_AS(tokenizer.decode(Tokens{269}), Error);
  CHECK_THROWS_AS(tokenizer.decode(Tokens{-1}), Error);
}

TEST_CASE("BpeTokenizer: agrees with merging pair by pair, also where the order of merges is odd")
{
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> entries = {"a", "b", "c", "d"};
    std::vector<MergePair> merges;
    while (merges.size() < 30) {
      const std::string left = entries[random() % entries.size()], right = entries[random() % entries.size()];
      if (left.size() + right.size() > 8 || std::count(entries.begin(), entries.end(), left + right) > 0) continue;
      merges.emplace_back(left, right);
      entries.push_back(left + right);
    }
    VocabularyFiles files = small_vocabulary(merges);
    if (round % 2 == 1) {  // what is made of a merge may stand before it
      std::shuffle(merges.begin(), merges.end(), random);
      files.vocab_bpe = small_vocabulary(merges).vocab_bpe;
    }
    const BpeTokenizer tokenizer(files);
    for (int text = 0; text < 50; ++text) {
      const std::string word = random_bytes(random, 1 + random() % 150, "abcd");
      std::vector<std::string> parts;
      for (const char letter : word) parts.emplace_back(1, letter);
      while (true) {
        std::optional<std::pair<std::size_t, std::size_t>> best;  // order, place
        for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
          const auto found = std::find(merges.begin(), merges.end(), MergePair(parts[i], parts[i + 1]));
          const auto order = static_cast<std::size_t>(found - merges.begin());
          if (found != merges.end() && (!best || order < best->first)) best = {order, i};
        }
        if (!best) break;
        parts[best->second] += parts[best->second + 1];
        parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best->second) + 1);
      }
      std::vector<std::string> got;
      for (const Token token : tokenizer.encode(word)) got.push_back(tokenizer.decode(std::vector{token}));
      REQUIRE(got == parts);
      REQUIRE(tokenizer.encode(word).size() == parts.size());  // and again, now that it was seen
    }
  }
}

TEST_CASE("BpeTokenizer: any bytes come back")
{
  const BpeTokenizer small(small_vocabulary());
  const auto gpt2 = gpt2_tokenizer();
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    const std::string text =
        round % 2 == 0 ? random_bytes(random, random() % 300) : random_text(random, random() % 100);
    CHECK((small.decode(small.encode(text)) == text));
    if (gpt2) CHECK((gpt2->decode(gpt2->encode(text)) == text));
  }
}

TEST_CASE("BpeTokenizer: the work for a megabyte without a border is not quadratic")
{
  const BpeTokenizer tokenizer(small_vocabulary());
  const std::string letters(1'000'000, 'a'), blanks = std::string(1'000'000, ' ') + "x", others(1'000'000, '\xFF');
  CHECK(tokenizer.encode(letters).size() == 250'000);
  CHECK(tokenizer.encode(blanks).size() == 500'002);  // the last blank goes with the letter, and they do not merge
  CHECK(tokenizer.encode(others).size() == 1'000'000);
  CHECK(tokenizer.last_cut(letters, 0) == 0);
}

// ---- GPT-2's own vocabulary -----------------------------------------------------------------------------------------

TEST_CASE("BpeTokenizer: GPT-2's encodings")
{
  const auto tokenizer = gpt2_tokenizer();
  if (!tokenizer) return;
  CHECK(tokenizer->vocabulary() == 50'257);
  CHECK(tokenizer->decode(std::vector<Token>{50'256}) == "<|endoftext|>");
  // Results of OpenAI's tiktoken.
  const std::map<std::string, std::vector<Token>> published = {
      {"Hello world", {15496, 995}},
      {"Hello, world!", {15496, 11, 995, 0}},
      {"I'll say we've don't 'S", {40, 1183, 910, 356, 1053, 836, 470, 705, 50}},
      {"  two  blanks \n\n end ", {220, 734, 220, 698, 2283, 220, 628, 886, 220}},
      {"2024\u5E74 na\u00EFve \u00DCn\u00EFcode\u00A0\u3000x",
       {1238, 1731, 33176, 112, 41492, 49363, 77, 26884, 8189, 1849, 5099, 222, 87}},
      {"\U0001F989 owls", {8582, 99, 231, 12334, 7278}},
      {"\u180E a", {157, 254, 236, 257}},
      {"<|endoftext|>", {27, 91, 437, 1659, 5239, 91, 29}},
      {std::string("\0\x7F", 2), {188, 221}}};
  for (const auto& [text, tokens] : published) CHECK(tokenizer->encode(text) == tokens);
}

TEST_CASE("BpeTokenizer: Tiny Shakespeare has the published number of tokens")
{
  const std::string path = real_data("tinyshakespeare.txt");
  const auto tokenizer = gpt2_tokenizer();
  if (path.empty() || !tokenizer) return;
  const std::string text = read_file(path);  // ASCII: a character is a byte
  const std::size_t cut = text.size() * 9 / 10;
  CHECK(tokenizer->encode(text.substr(0, cut)).size() == 301'966);  // nanoGPT, data/shakespeare
  CHECK(tokenizer->encode(text.substr(cut)).size() == 36'059);
}

// ---- Vocabularies that are none -------------------------------------------------------------------------------------

TEST_CASE("BpeTokenizer: refuses a malformed encoder.json")
{
  check_refused({.encoder_json = "", .vocab_bpe = "", .source = "small"}, "not JSON at byte");
  check_refused({.encoder_json = "{\"a\": 0", .vocab_bpe = "", .source = "small"}, "not JSON at byte 8");
  check_refused({.encoder_json = "{\"\xFF\": 0}", .vocab_bpe = "", .source = "small"}, "not JSON at byte");
  check_refused({.encoder_json = "7", .vocab_bpe = "", .source = "small"}, "a number alone");
  check_refused({.encoder_json = std::string(1'000'000, '['), .vocab_bpe = "", .source = "small"}, "holds a list");
  check_refused({.encoder_json = "{}", .vocab_bpe = "", .source = "small"}, "no entry for the byte 0x00");
  for (const auto& [value, words] : std::map<std::string, std::string>{{"\"97\"", "a text in place of a number"},
                                                                       {"97.0", "not whole"},
                                                                       {"-97", "the number -97"},
                                                                       {"5000000000", "the number 5000000000"},
                                                                       {"99999999999999999999", "not whole"},
                                                                       {"null", "null"},
                                                                       {"true", "true or false"},
                                                                       {"[97]", "a list"},
                                                                       {"{}", "an object"},
                                                                       {"98", "two entries the number 98"},
                                                                       {"269", "269 entries"}}) {
    check_refused(replaced("\"a\":97", "\"a\":" + value), words);
  }
  check_refused(replaced("\"a\":97", "\"b\":97"), "twice");
  check_refused(replaced("\"a\":97", "\"bb\":97"), "no entry for the byte 0x61");
  check_refused(replaced("\"a\":97", "\"a b\":97"), "spells no bytes in entry 97");
  check_refused(replaced("\"a\":97", "\"\":97"), "spells no bytes in entry 97");
  check_refused(replaced("\"a\":97", "\"\u6F22\":97"), "spells no bytes in entry 97");
}

TEST_CASE("BpeTokenizer: refuses a malformed vocab.bpe")
{
  const auto with = [](const std::string& lines) {
    VocabularyFiles files = small_vocabulary({{"t", "h"}, {"th", "e"}});
    files.vocab_bpe = lines;
    return files;
  };
  CHECK(BpeTokenizer(small_vocabulary(std::vector<MergePair>())).encode("the").size() == 3);
  CHECK(BpeTokenizer(with("t h\nth e")).encode("the").size() == 1);  // the version may be missing
  for (const char* const cut : {"", "#version: 0.2\n", "t h\n"})
    check_refused(with(cut), "no line of vocab.bpe makes entry 25");
  for (const char* const line : {"t", "t ", " h", "", "t h e", "t  h", "t\th", "t \xFF", "t \xC1\xA8", "\xC4"}) {
    check_refused(with(fmt::format("#version: 0.2\nt h\n{}\nth e\n", line)),
                  "line 3 of vocab.bpe is not two entries");
  }
  check_refused(with("t h\n#version: 0.2\n"), "line 2");
  check_refused(with("t h\r\n\r\nth e"), "line 2 of vocab.bpe is not two entries");
  // Entries that no two others make are special, however they are spelled.
  for (const char* const special : {"madeupword0000", "[unused1]", "<s>"})
    CHECK(BpeTokenizer(replaced("<|endoftext|>", special)).decode(std::vector<Token>{268}) == special);
  check_refused(replaced("<|endoftext|>", "thea"), "makes entry 268 of encoder.json, \"thea\", of two others");
  for (const char* const same : {"t h\r\nth e\r\n", "#version: 0.2\rt h\rth e", "t h\nth e\n\n",
                                 "t h \nth e\t\n \r\n"})  // white space means nothing
    CHECK(BpeTokenizer(with(same)).encode("the").size() == 1);
  check_refused(with("t h\nx y\n"), "line 2 of vocab.bpe merges entries that encoder.json does not have");
  check_refused(with("t h\nxy z\n"), "line 2 of vocab.bpe merges entries");
  check_refused(with("t h\nt h\n"), "line 2 of vocab.bpe repeats a merge");
}

TEST_CASE("BpeTokenizer: random damage to a vocabulary is refused, or makes another vocabulary")
{
  Draw draw(11);
  std::mt19937 random(11);
  const VocabularyFiles whole = small_vocabulary();
  const std::string text = random_text(random, 30);
  const int inputs = fuzz_inputs(300);
  int refused = 0;
  for (int input = 0; input < inputs; ++input) {
    VocabularyFiles files = whole;
    std::string& file = input % 2 == 0 ? files.encoder_json : files.vocab_bpe;
    file = damaged(file, draw);
    try {
      const BpeTokenizer tokenizer(files);
      if (tokenizer.decode(tokenizer.encode(text)) != text) FAIL(file);
    } catch (const UserError&) {
      ++refused;
    }
  }
  CHECK(refused > inputs / 2);
}

TEST_CASE("read_vocabulary_files: refuses missing and oversized files")
{
  const ScratchFolder folder;
  CHECK_THROWS_WITH(read_vocabulary_files(folder / "none"), Contains("encoder.json does not exist"));
  std::filesystem::create_directory(folder / "encoder.json");
  CHECK_THROWS_WITH(read_vocabulary_files(folder / "."), Contains("is a folder"));
  std::filesystem::remove(folder / "encoder.json");
  make_file(folder / "encoder.json", "{}");
  CHECK_THROWS_WITH(read_vocabulary_files(folder / "."), Contains("vocab.bpe does not exist"));
  make_file(folder / "vocab.bpe", "a b");
  CHECK(read_vocabulary_files(folder / ".").vocab_bpe == "a b");
  std::filesystem::resize_file(folder / "vocab.bpe", max_vocabulary_file_bytes + 1);
  CHECK_THROWS_AS(read_vocabulary_files(folder / "."), UserError);
  CHECK_THROWS_WITH(read_vocabulary_files(folder / "."), Contains("more than 16,777,216 bytes"));
}
