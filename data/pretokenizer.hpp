#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

/// @file
/// The first stage of GPT-2's tokenizer: a text is split into
/// pieces, and no token crosses the border between two pieces.

namespace rankwise {

/// Splits a text into pieces: an English contraction ('s 't 're 've 'm 'll 'd); a run of letters, of numbers or of
/// other characters, each with one space before it if there is one; or a run of white space, without its last
/// character if a word follows. A run of bytes that are not UTF-8 is a piece too.
/// @source  the regular expression of Radford et al. 2019, in the program that they published.
class Pretokenizer {
 public:
  Pretokenizer();
  ~Pretokenizer();
  Pretokenizer(const Pretokenizer&) = delete;
  Pretokenizer& operator=(const Pretokenizer&) = delete;

  /// Receives one piece.
  using Use = std::function<void(std::string_view)>;

  /// Calls @p use for each piece of @p text in order; the pieces together are the text.
  void cut(std::string_view text, const Use& use) const;

  /// The last position of @p text at which the two characters beside it suffice to know that a piece ends there:
  /// white space follows another character, or a character of another kind follows a letter or a number.
  /// @param text   the beginning of a text, or all of it.
  /// @param known  number of bytes at its beginning in which there is no such position.
  /// @return   the position, in bytes; 0 when there is none.
  std::size_t last_cut(std::string_view text, std::size_t known) const;

 private:
  class Pattern;
  std::unique_ptr<const Pattern> piece_;
  std::unique_ptr<const Pattern> before_cut_;
};

}  // namespace rankwise
