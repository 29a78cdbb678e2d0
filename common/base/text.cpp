#include "common/base/text.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace rankwise {

std::string group_digits(std::int64_t value)
{
  std::string digits = std::to_string(value);
  const int first = value < 0 ? 1 : 0;
  for (int at = static_cast<int>(digits.size()) - 3; at > first; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), ",");
  }
  return digits;
}

int edit_distance(std::string_view a, std::string_view b)
{
  // distance[i][j] is the distance between the first i letters of a and the first j letters of b.
  std::vector<std::vector<int>> distance(a.size() + 1, std::vector<int>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        distance[i][j] = static_cast<int>(i + j);
        continue;
      }
      const int replaced = distance[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      int best = std::min({replaced, distance[i - 1][j] + 1, distance[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        best = std::min(best, distance[i - 2][j - 2] + 1);
      distance[i][j] = best;
    }
  }
  return distance[a.size()][b.size()];
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates)
{
  std::string best;
  int best_distance = std::max(2, static_cast<int>(word.size()) / 3) + 1;
  for (const std::string& candidate : candidates) {
    // The difference in length is a lower bound on the distance, which avoids computing it for much longer words.
    const std::size_t more = std::max(word.size(), candidate.size()) - std::min(word.size(), candidate.size());
    if (more >= static_cast<std::size_t>(best_distance)) continue;
    const int distance = edit_distance(word, candidate);
    if (distance >= best_distance) continue;
    best_distance = distance;
    best = candidate;
  }
  return best;
}

std::string one_of(const std::vector<std::string>& words)
{
  if (words.size() < 2) return fmt::format("{}", fmt::join(words, ""));
  return fmt::format("{} or {}", fmt::join(words.begin(), words.end() - 1, ", "), words.back());
}

std::string looked_for(const std::string& path)
{
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(path, error).lexically_normal();
  return error || whole == path ? "" : fmt::format(" ({})", whole.string());
}

std::string text_of(SourceLocation where)
{
  return fmt::format("{}:{}", short_file_name(where.file_name()), where.line());
}

std::string_view trimmed(std::string_view text)
{
  constexpr std::string_view blanks = " \t\r\n";
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

std::size_t character_bytes(std::string_view text)
{
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto within = [](unsigned value, unsigned first, unsigned last) { return first <= value && value <= last; };
  const auto continues = [&](std::size_t i) { return within(byte(i), 0x80, 0xBF); };
  const unsigned lead = byte(0);
  if (text.empty()) return 0;
  if (lead < 0x80) return 1;
  if (within(lead, 0xC2, 0xDF)) return continues(1) ? 2 : 0;
  if (within(lead, 0xE0, 0xEF)) {  // neither overlong nor a surrogate
    return within(byte(1), lead == 0xE0 ? 0xA0 : 0x80, lead == 0xED ? 0x9F : 0xBF) && continues(2) ? 3 : 0;
  }
  if (within(lead, 0xF0, 0xF4)) {  // neither overlong nor beyond U+10FFFF
    return within(byte(1), lead == 0xF0 ? 0x90 : 0x80, lead == 0xF4 ? 0x8F : 0xBF) && continues(2) && continues(3)
               ? 4
               : 0;
  }
  return 0;
}

std::string printable(std::string_view text)
{
  // Characters that move a cursor or turn the direction of the text after them.
  constexpr std::pair<std::uint32_t, std::uint32_t> controls[] = {
      {0, 8}, {0xB, 0x1F}, {0x7F, 0x9F}, {0x61C, 0x61C}, {0x200E, 0x200F}, {0x202A, 0x202E}, {0x2066, 0x2069}};
  std::string shown;
  for (std::string_view rest = text, piece; !rest.empty(); rest.remove_prefix(piece.size())) {
    const std::size_t length = character_bytes(rest);
    piece = rest.substr(0, std::max<std::size_t>(length, 1));
    std::uint32_t code = static_cast<unsigned char>(piece[0]);
    if (length > 1) code &= 0xFFU >> (length + 1);
    for (const char byte : piece.substr(1)) code = code << 6 | (static_cast<unsigned char>(byte) & 0x3F);
    const bool control = std::ranges::any_of(
        controls, [&](const auto& range) { return range.first <= code && code <= range.second; });
    if (length > 0 && !control)
      shown += piece;
    else
      shown += length > 1 ? fmt::format("\\u{{{:x}}}", code) : fmt::format("\\x{:02x}", code);
  }
  return shown;
}

bool print_text(std::FILE* out, std::string_view text)
{
  return draw_text(out, printable(text));
}

bool draw_text(std::FILE* out, std::string_view text)
{
  return std::fwrite(text.data(), 1, text.size(), out) == text.size() && std::fflush(out) == 0;
}

std::vector<std::string> split(const std::string& text, char at)
{
  std::vector<std::string> parts;
  std::istringstream list(text);
  for (std::string part; std::getline(list, part, at);) parts.push_back(part);
  return parts;
}

}  // namespace rankwise
