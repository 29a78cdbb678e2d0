#include <algorithm>
#include <string>
#include <vector>

#include "common/base/error.hpp"
#include "data/bpe.hpp"
#include "data/line_index.hpp"
#include "tests/catch.hpp"
#include "tests/data/small_vocabulary.hpp"

using namespace rankwise;

namespace {

using Conversation = std::vector<std::string>;

/// The conversations of a text, line by line.
std::vector<Conversation> conversations_of(const std::string& text)
{
  std::vector<Conversation> conversations(1);
  std::string line;
  for (const char c : text + "\n\n") {
    if (c != '\n') {
      line += c;
      continue;
    }
    line = line.substr(0, line.find_last_not_of(" \t\r") + 1);
    if (!line.empty()) {
      conversations.back().push_back(line);
      line.clear();
    } else if (!conversations.back().empty()) {
      conversations.emplace_back();
    }
  }
  conversations.pop_back();
  return conversations;
}

/// Conversations of 1 to 4 lines of 1 to 40 bytes, with 2 to 4 newlines between them. A line tells its number.
std::string long_text(int conversations)
{
  std::string text = "\n\n";
  int number = 0;
  for (int c = 0; c < conversations; ++c) {
    for (int line = 0; line <= c % 4; ++line, ++number) {
      text += std::to_string(number) + std::string(static_cast<std::size_t>(number * 7 % 35), 'x') + '\n';
    }
    text += std::string(static_cast<std::size_t>(1 + c % 3), '\n');
  }
  return text;
}

LineIndex index_of(const std::string& text, const Tokenizer& tokenizer)
{
  return {std::make_shared<MemoryTokens>(tokenizer.encode(text)), tokenizer};
}

/// Compares the lines of @p text with those that conversations_of() finds.
void check_lines(const std::string& text, const Tokenizer& tokenizer)
{
  const LineIndex index = index_of(text, tokenizer);
  std::vector<std::pair<std::string, std::string>> pairs;
  std::vector<std::string> lines;
  for (const Conversation& conversation : conversations_of(text)) {
    lines.insert(lines.end(), conversation.begin(), conversation.end());
    for (std::size_t i = 0; i + 1 < conversation.size(); ++i)
      pairs.emplace_back(conversation[i], conversation[i + 1]);
  }
  const auto read = [&](std::int64_t line) { return tokenizer.decode(index.read(line, 1000)); };
  REQUIRE(index.pairs() == static_cast<std::int64_t>(pairs.size()));
  REQUIRE(index.lines() == static_cast<std::int64_t>(lines.size()));
  std::vector<std::string> found;
  std::int64_t wrong = 0, shortest = 0;
  for (std::int64_t line = 0; line < index.lines(); ++line) found.push_back(read(line));
  for (std::int64_t pair = 0; pair < index.pairs(); ++pair) {
    const auto& [a, b] = pairs[static_cast<std::size_t>(pair)];
    wrong += read(pair) != a || read(index.successor(pair)) != b;
    const auto tokens =
        static_cast<std::int64_t>(index.read(pair, 1000).size() + index.read(index.successor(pair), 1000).size());
    shortest = shortest == 0 ? tokens : std::min(shortest, tokens);
  }
  CHECK(wrong == 0);
  CHECK(index.shortest_pair() == shortest);
  std::sort(lines.begin(), lines.end());
  std::sort(found.begin(), found.end());
  CHECK(found == lines);
}

/// A tokenizer that needs two tokens for a newline.
class WithoutNewline final : public Tokenizer {
 public:
  std::string name() const override { return "pairs of tokens"; }
  Token vocabulary() const override { return 16; }
  std::vector<Token> encode(std::string_view text) const override { return std::vector<Token>(2 * text.size()); }
  std::string decode(std::span<const Token> tokens) const override { return std::string(tokens.size(), 'a'); }
  std::size_t last_cut(std::string_view text, std::size_t /*known*/) const override { return text.size(); }
};

}  // namespace

TEST_CASE("LineIndex: lines and pairs are those of the text, across blocks of reading")
{
  for (const char* text : {"", "\n", "\n\n\n", "a", "a\n", "a\nb", "a\nb\n", "a\n\nb", "a\nb\n\nc\n\n\nd\ne\nf\n\n",
                           "\na\nb", "\n\n\na\n\n\n\nb\nc", "ab\nc\n\nde\nfgh\n", "a\r\nb\r\n\r\nc\r\nd",
                           "a \n  b\t\n \nc d \n", " \na", "a\n \r\n\nb\rc\nd\r"}) {
    INFO(text);
    check_lines(text, ByteTokenizer());
  }
  const std::string text = long_text(6000);
  CHECK(text.size() > 4 * 65'536);
  check_lines(text, ByteTokenizer());
  check_lines(text.substr(0, text.find_last_of('x')), ByteTokenizer());
}

TEST_CASE("LineIndex: a tokenizer with a token for two newlines gives the same lines")
{
  const BpeTokenizer tokenizer(small_vocabulary());
  // A line that begins with a blank leaves both newlines before it in one token.
  const std::string text = "the owl\n\n the cow\n\n\nthe cow\nowl\n\nand\nthe\nend\n\n\n\n\nnow\n" + long_text(200);
  const std::vector<Token> tokens = tokenizer.encode(text);
  CHECK(std::any_of(tokens.begin(), tokens.end(), [&](Token token) {
    return tokenizer.decode({&token, 1}) == "\n\n";
  }));
  check_lines(text, tokenizer);
}

TEST_CASE("LineIndex: a token that holds a newline among other bytes separates lines")
{
  const BpeTokenizer tokenizer(small_vocabulary({{"\xC2", "\xA0"}, {"\n", "\xC2\xA0"}}));
  const LineIndex index = index_of("one\n\xC2\xA0\xC2\xA0two", tokenizer);
  REQUIRE(index.pairs() == 1);
  CHECK(tokenizer.decode(index.read(0, 100)) == "one");
  CHECK(tokenizer.decode(index.read(1, 100)) == "\xC2\xA0two");
}

TEST_CASE("LineIndex: reads no more tokens of a line than are wanted")
{
  const LineIndex index = index_of("abcdef\nghi\n\nxyz", ByteTokenizer());
  CHECK(ByteTokenizer().decode(index.read(0, 4)) == "abcd");
  CHECK(ByteTokenizer().decode(index.read(0, 6)) == "abcdef");
  CHECK(ByteTokenizer().decode(index.read(1, 7)) == "ghi");  // the last lines follow those with a successor
  CHECK(ByteTokenizer().decode(index.read(2, 7)) == "xyz");
  CHECK_THROWS_AS(index.read(3, 1), Error);
  CHECK_THROWS_AS(index.read(-1, 1), Error);
  CHECK_THROWS_AS(index.successor(1), Error);
}

TEST_CASE("LineIndex: a tokenizer without a token for a newline is an error")
{
  CHECK_THROWS_WITH(LineIndex(std::make_shared<MemoryTokens>(std::vector<Token>{1, 2}), WithoutNewline()),
                    Contains("newline"));
}
