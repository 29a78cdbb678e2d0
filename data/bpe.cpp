#include "data/bpe.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <queue>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/json.hpp"
#include "common/base/text.hpp"

namespace rankwise {

namespace {

[[noreturn]] void refuse(const VocabularyFiles& files, const std::string& why)
{
  throw UserError(fmt::format("the vocabulary in {} is damaged: {}.", files.source, why),
                  where_vocabularies_come_from);
}

// ---- How the files spell bytes ---------------------------------------------------------------------------------

constexpr int spelling_characters = 256 + 68;

/// True if a byte is spelled as itself.
bool is_printable(int byte)
{
  return (0x21 <= byte && byte <= 0x7E) || (0xA1 <= byte && byte <= 0xAC) || (0xAE <= byte && byte <= 0xFF);
}

/// The character of each byte.
std::array<int, 256> characters_of_bytes()
{
  std::array<int, 256> characters{};
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    characters[static_cast<std::size_t>(byte)] = is_printable(byte) ? byte : next++;
  }
  return characters;
}

/// The byte of each character; -1 for a character that spells no byte.
std::array<int, spelling_characters> bytes_of_characters()
{
  std::array<int, spelling_characters> bytes{};
  bytes.fill(-1);
  const std::array<int, 256> characters = characters_of_bytes();
  for (std::size_t byte = 0; byte < 256; ++byte) {
    bytes[static_cast<std::size_t>(characters[byte])] = static_cast<int>(byte);
  }
  return bytes;
}

/// The bytes that @p spelled spells; empty when it is not a valid spelling.
std::optional<std::string> bytes_spelled(std::string_view spelled)
{
  static const std::array<int, spelling_characters> table = bytes_of_characters();
  std::string bytes;
  for (std::size_t i = 0; i < spelled.size(); ++i) {
    int character = static_cast<unsigned char>(spelled[i]);
    if (character >= 0x80) {  // two bytes of UTF-8: 110xxxxx 10xxxxxx
      if (character_bytes(spelled.substr(i)) != 2) return {};
      character = (character & 0x1F) << 6 | (spelled[++i] & 0x3F);
    }
    if (character >= spelling_characters || table[static_cast<std::size_t>(character)] < 0) return {};
    bytes += static_cast<char>(table[static_cast<std::size_t>(character)]);
  }
  return bytes;
}

// ---- encoder.json ----------------------------------------------------------------------------------------------

/// One entry of the file.
struct Entry {
  std::string spelled;
  std::int64_t number = 0;
};

/// Receives encoder.json while it is parsed, and stops at the first invalid element.
class EntryReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<Entry> entries;
  std::string problem;

  bool start_object(std::size_t) override
  {
    return std::exchange(inside_, true) ? no("an object in the object") : true;
  }
  bool end_object() override { return true; }
  bool key(string_t& name) override
  {
    entries.push_back({std::move(name), 0});
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override
  {
    if (!inside_) return no("a number alone");
    if (value > std::numeric_limits<Token>::max()) return no(fmt::format("the number {}", value));
    entries.back().number = static_cast<std::int64_t>(value);
    return true;
  }
  bool number_integer(number_integer_t value) override { return no(fmt::format("the number {}", value)); }
  bool number_float(number_float_t, const string_t&) override { return no("a number that is not whole"); }
  bool null() override { return no("null"); }
  bool boolean(bool) override { return no("true or false"); }
  bool string(string_t&) override { return no("a text in place of a number"); }
  bool binary(binary_t&) override { return no("bytes"); }
  bool start_array(std::size_t) override { return no("a list"); }
  bool end_array() override { return true; }
  bool parse_error(std::size_t byte, const std::string&, const nlohmann::detail::exception&) override
  {
    problem = fmt::format("is not JSON at byte {}", group_digits(static_cast<std::int64_t>(byte)));
    return false;
  }

 private:
  bool no(const std::string& what)
  {
    problem = fmt::format("holds {}; it has to give each entry a number, counted from 0", what);
    return false;
  }

  bool inside_ = false;
};

/// The bytes of each token, by number.
std::vector<std::string> read_entries(const VocabularyFiles& files)
{
  EntryReader reader;
  if (!nlohmann::json::sax_parse(files.encoder_json, &reader))
    refuse(files, files.entries_file + " " + reader.problem);

  const auto count = static_cast<std::int64_t>(reader.entries.size());
  std::vector<std::string> bytes(reader.entries.size());
  for (const auto& [spelled, number] : reader.entries) {
    if (number >= count) {
      refuse(files, fmt::format("{} has {} entries, and gives one of them the number {}", files.entries_file,
                                group_digits(count), group_digits(number)));
    }
    std::string& place = bytes[static_cast<std::size_t>(number)];
    if (!place.empty())
      refuse(files, fmt::format("{} gives two entries the number {}", files.entries_file, number));
    place = bytes_spelled(spelled).value_or("");
    if (place.empty()) refuse(files, fmt::format("{} spells no bytes in entry {}", files.entries_file, number));
  }
  return bytes;
}

}  // namespace

std::string spelling_of_byte(unsigned char byte)
{
  static const std::array<int, 256> table = characters_of_bytes();
  const int character = table[byte];
  if (character < 0x80) return {static_cast<char>(character)};
  return {static_cast<char>(0xC0 | character >> 6), static_cast<char>(0x80 | (character & 0x3F))};
}

// ---- The vocabulary --------------------------------------------------------------------------------------------

BpeTokenizer::BpeTokenizer(const VocabularyFiles& files) : bytes_(read_entries(files))
{
  std::unordered_map<std::string_view, Token> tokens;
  for (const std::string& bytes : bytes_) {
    const auto token = static_cast<Token>(tokens.size());
    if (!tokens.emplace(bytes, token).second)
      refuse(files, fmt::format("{} has entry {} twice", files.entries_file, token));
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char letter = static_cast<char>(byte);
    const auto found = tokens.find(std::string_view(&letter, 1));
    if (found == tokens.end())
      refuse(files, fmt::format("{} has no entry for the byte {:#04x}", files.entries_file, byte));
    token_of_byte_[static_cast<std::size_t>(byte)] = found->second;
  }
  read_merges(files, tokens);
}

void BpeTokenizer::read_merges(const VocabularyFiles& files,
                               const std::unordered_map<std::string_view, Token>& tokens)
{
  std::vector<bool> made(bytes_.size());
  const auto token_of = [&](std::string_view bytes) {
    const auto found = tokens.find(bytes);
    return found == tokens.end() ? Token{-1} : found->second;
  };
  // No entry is spelled with white space, so what there is at the end of a line or of the list means nothing.
  std::string_view rest = trimmed(files.vocab_bpe);
  for (std::int32_t line = 1; !rest.empty(); ++line) {
    const std::string_view whole = rest.substr(0, rest.find_first_of("\r\n")), text = trimmed(whole);
    rest.remove_prefix(whole.size());
    rest.remove_prefix(std::min<std::size_t>(rest.starts_with("\r\n") ? 2 : 1, rest.size()));
    if (line == 1 && text.starts_with("#version")) continue;

    const std::size_t blank = std::min(text.find(' '), text.size());
    const auto left = bytes_spelled(text.substr(0, blank));
    const auto right = bytes_spelled(text.substr(std::min(blank + 1, text.size())));
    if (!left || !right || left->empty() || right->empty()) {
      refuse(files, fmt::format("line {} of {} is not two entries separated by a space", line, files.merges_file));
    }
    const Token a = token_of(*left), b = token_of(*right), result = token_of(*left + *right);
    if (a < 0 || b < 0 || result < 0) {
      refuse(files, fmt::format("line {} of {} merges entries that {} does not have", line, files.merges_file,
                                files.entries_file));
    }
    if (!merges_.emplace(pair_key(a, b), Merge{line, result}).second) {
      refuse(files, fmt::format("line {} of {} repeats a merge", line, files.merges_file));
    }
    made[static_cast<std::size_t>(result)] = true;
  }
  for (std::size_t token = 0; token < bytes_.size(); ++token) {
    const std::string_view bytes = bytes_[token];
    if (made[token] || (bytes.front() == '<' && bytes.back() == '>')) continue;
    for (std::size_t cut = 1; cut < bytes.size(); ++cut)
      if (token_of(bytes.substr(0, cut)) >= 0 && token_of(bytes.substr(cut)) >= 0)
        refuse(files,
               fmt::format("no line of {} makes entry {} of {}, \"{}\", of two others; a part of it is missing",
                           files.merges_file, token, files.entries_file, bytes));
  }
}

std::uint64_t BpeTokenizer::pair_key(Token left, Token right)
{
  return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
}

// ---- Text to tokens --------------------------------------------------------------------------------------------

std::vector<Token> BpeTokenizer::encode(std::string_view text) const
{
  std::vector<Token> tokens;
  tokens.reserve(text.size() / 3);
  pretokenizer_.cut(text, [&](std::string_view piece) { encode_piece(piece, tokens); });
  return tokens;
}

void BpeTokenizer::encode_piece(std::string_view piece, std::vector<Token>& tokens) const
{
  constexpr std::size_t longest_seen = 64, most_seen = 1 << 17;
  const auto append = [&](const std::vector<Token>& more) {
    tokens.insert(tokens.end(), more.begin(), more.end());
  };
  if (piece.size() > longest_seen) return append(merge_bytes(piece));
  auto found = seen_.find(piece);
  if (found == seen_.end()) {
    if (seen_.size() >= most_seen) seen_.clear();
    found = seen_.emplace(piece, merge_bytes(piece)).first;
  }
  append(found->second);
}

std::vector<Token> BpeTokenizer::merge_bytes(std::string_view piece) const
{
  check(piece.size() < std::numeric_limits<std::int32_t>::max(), "a piece of 2 GiB cannot be encoded");
  // The tokens are a linked list over the positions of the
  // piece; a token merged into its left neighbour becomes -1.
  const std::size_t n = piece.size();
  std::vector<Token> token(n);
  std::vector<std::uint32_t> next(n), previous(n);
  for (std::size_t i = 0; i < n; ++i) {
    token[i] = token_of_byte_[static_cast<unsigned char>(piece[i])];
    next[i] = static_cast<std::uint32_t>(i + 1);
    previous[i] = static_cast<std::uint32_t>(i) - 1;  // never used for the first token
  }
  const auto merge_at = [&](std::size_t i) -> const Merge* {
    if (token[i] < 0 || next[i] == n) return nullptr;
    const auto found = merges_.find(pair_key(token[i], token[next[i]]));
    return found == merges_.end() ? nullptr : &found->second;
  };

  // A heap of possible merges, the next one on top: order in the high half of the number, position in the low half.
  std::vector<std::uint64_t> possible;
  const auto note = [&](std::size_t i, const auto& keep) {
    if (const Merge* const merge = merge_at(i)) keep(static_cast<std::uint64_t>(merge->order) << 32 | i);
  };
  for (std::size_t i = 0; i < n; ++i) note(i, [&](std::uint64_t entry) { possible.push_back(entry); });
  std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> queue({}, std::move(possible));
  while (!queue.empty()) {
    const std::uint64_t top = queue.top();
    queue.pop();
    const auto i = static_cast<std::uint32_t>(top);
    const Merge* const merge = merge_at(i);
    if (merge == nullptr || static_cast<std::uint64_t>(merge->order) != top >> 32)
      continue;  // one of the neighbours has been merged already
    const std::uint32_t taken = next[i];
    token[i] = merge->result;
    token[taken] = -1;
    next[i] = next[taken];
    if (next[i] < n) previous[next[i]] = i;
    note(i, [&](std::uint64_t entry) { queue.push(entry); });
    if (i > 0) note(previous[i], [&](std::uint64_t entry) { queue.push(entry); });
  }
  std::erase(token, -1);
  return token;
}

std::size_t BpeTokenizer::last_cut(std::string_view text, std::size_t known) const
{
  return pretokenizer_.last_cut(text, known);
}

// ---- Tokens to text --------------------------------------------------------------------------------------------

std::string BpeTokenizer::decode(std::span<const Token> tokens) const
{
  std::string text;
  for (const Token token : tokens) {
    check(0 <= token && token < vocabulary(), fmt::format("token {} is not in the vocabulary", token));
    text += bytes_[static_cast<std::size_t>(token)];
  }
  return text;
}

}  // namespace rankwise
