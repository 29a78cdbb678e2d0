#include "data/pretokenizer.hpp"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"

namespace rankwise {

namespace {

// White space as Unicode has it; PCRE2's \s also holds U+180E, which is none since Unicode 6.3.
const std::string white =
    R"(\x09-\x0d\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// Letters and numbers of Unicode 16.0. PCRE2 10.42 has the tables of Unicode 14.0; the ranges are what came later.
// Source: General_Category in UnicodeData.txt 16.0.
const std::string letters =
    R"(\p{L}\x{1c89}-\x{1c8a}\x{a7cb}-\x{a7cd}\x{a7da}-\x{a7dc}\x{105c0}-\x{105f3}\x{10d4a}-\x{10d65})"
    R"(\x{10d6f}-\x{10d85}\x{10ec2}-\x{10ec4}\x{1123f}-\x{11240}\x{11380}-\x{11389}\x{1138b}\x{1138e})"
    R"(\x{11390}-\x{113b5}\x{113b7}\x{113d1}\x{113d3}\x{11bc0}-\x{11be0}\x{11f02}\x{11f04}-\x{11f10})"
    R"(\x{11f12}-\x{11f33}\x{1342f}\x{13441}-\x{13446}\x{13460}-\x{143fa}\x{16100}-\x{1611d})"
    R"(\x{16d40}-\x{16d6c}\x{18cff}\x{1b132}\x{1b155}\x{1df25}-\x{1df2a}\x{1e030}-\x{1e06d})"
    R"(\x{1e4d0}-\x{1e4eb}\x{1e5d0}-\x{1e5ed}\x{1e5f0}\x{2b739}\x{2ebf0}-\x{2ee5d}\x{31350}-\x{323af})";
const std::string numbers =
    R"(\p{N}\x{10d40}-\x{10d49}\x{116d0}-\x{116e3}\x{11bf0}-\x{11bf9}\x{11f50}-\x{11f59}\x{16130}-\x{16139})"
    R"(\x{16d70}-\x{16d79}\x{1ccf0}-\x{1ccf9}\x{1d2c0}-\x{1d2d3}\x{1e4f0}-\x{1e4f9}\x{1e5f1}-\x{1e5fa})";

const std::string piece_pattern =
    fmt::format(R"('(?:s|t|re|ve|m|ll|d)| ?[{1}]++| ?[{2}]++| ?[^{0}{1}{2}]++|[{0}]+(?![^{0}])|[{0}]+)", white,
                letters, numbers);

// A character that ends a piece, recognised together with the next one. Punctuation before a letter is left out,
// because it may be an apostrophe.
const std::string before_cut_pattern =
    fmt::format(R"([^{0}](?=[{0}])|[{1}](?=[^{0}{1}])|[{2}](?=[^{0}{2}]))", white, letters, numbers);

/// Number of bytes at the beginning of @p text that are whole characters.
std::size_t bytes_of_characters(std::string_view text)
{
  std::size_t end = 0;
  while (const std::size_t length = character_bytes(text.substr(end))) end += length;
  return end;
}

/// Number of bytes at the beginning of @p text before its first character.
std::size_t bytes_of_no_character(std::string_view text)
{
  std::size_t end = 0;
  while (end < text.size() && character_bytes(text.substr(end)) == 0) ++end;
  return end;
}

}  // namespace

// ---- Patterns --------------------------------------------------------------------------------------------------

/// A regular expression, compiled to machine code if PCRE2 supports it.
class Pretokenizer::Pattern {
 public:
  explicit Pattern(const std::string& pattern)
  {
    int problem = 0;
    std::size_t place = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF, &problem,
                              &place, nullptr));
    check(code_ != nullptr, fmt::format("PCRE2 refuses the pattern {} at {} ({})", pattern, place, problem));
    pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);  // optional: without it matching is slower
  }

  /// Calls @p found with begin and end of each match in @p text, which is UTF-8.
  template <class Found>
  void match_all(std::string_view text, const Found& found) const
  {
    const std::unique_ptr<pcre2_match_data, Free> match(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    check(match != nullptr, "no memory to match a pattern");
    for (std::size_t begin = 0; begin < text.size();) {
      const int result = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), begin,
                                     PCRE2_NO_UTF_CHECK, match.get(), nullptr);
      if (result == PCRE2_ERROR_NOMATCH) return;
      check(result > 0, fmt::format("PCRE2 cannot match a pattern (error {})", result));
      const std::size_t* const place = pcre2_get_ovector_pointer(match.get());
      found(place[0], place[1]);
      begin = place[1];
    }
  }

 private:
  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
  };
  std::unique_ptr<pcre2_code, Free> code_;
};

// ---- Cutting ---------------------------------------------------------------------------------------------------

Pretokenizer::Pretokenizer()
    : piece_(std::make_unique<Pattern>(piece_pattern)), before_cut_(std::make_unique<Pattern>(before_cut_pattern))
{
}

Pretokenizer::~Pretokenizer() = default;

void Pretokenizer::cut(std::string_view text, const Use& use) const
{
  while (!text.empty()) {
    const std::string_view characters = text.substr(0, bytes_of_characters(text));
    piece_->match_all(characters, [&](std::size_t begin, std::size_t end) {
      use(characters.substr(begin, end - begin));  // every character belongs to a piece
    });
    text.remove_prefix(characters.size());
    if (const std::size_t others = bytes_of_no_character(text)) use(text.substr(0, others));
    text.remove_prefix(bytes_of_no_character(text));
  }
}

std::size_t Pretokenizer::last_cut(std::string_view text, std::size_t known) const
{
  constexpr std::size_t two_characters = 8;
  const std::size_t first = known - std::min(known, two_characters);
  for (std::size_t window = 4096;; window *= 2) {  // from the end: the first window usually contains a word
    std::size_t begin = text.size() - std::min(text.size() - first, window), last = 0;
    const bool all = begin == first;
    while (begin < text.size()) {
      const std::string_view characters = text.substr(begin, bytes_of_characters(text.substr(begin)));
      before_cut_->match_all(characters, [&](std::size_t, std::size_t end) { last = begin + end; });
      begin += characters.size();
      begin += bytes_of_no_character(text.substr(begin));
    }
    if (last > 0 || all) return last;
  }
}

}  // namespace rankwise
