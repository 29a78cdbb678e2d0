#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

/// @file
/// The first half of GPT-2's tokenizer: a text is cut into pieces, and no token reaches from one into the next.

namespace rankwise {

/// Cuts a text into pieces: an English contraction ('s 't 're 've 'm 'll 'd), a run of letters, of numbers or of other
/// signs, each with one blank before it if there is one, or a run of white space, which leaves its last character to the
/// word that follows. A run of bytes that are not UTF-8 is a piece too.
/// @source  the regular expression of Radford et al. 2019, in the program that they published.
class Pretokenizer {
 public:
  Pretokenizer();
  ~Pretokenizer();
  Pretokenizer(const Pretokenizer&) = delete;
  Pretokenizer& operator=(const Pretokenizer&) = delete;

  /// Receives one piece.
  using Use = std::function<void(std::string_view)>;

  /// Calls @p use for each piece of @p text in order; together the pieces are the text.
  void cut(std::string_view text, const Use& use) const;

  /// The last place of @p text that is a border between two pieces whatever stands before and behind the two characters
  /// beside it: white space after anything else, anything else after letters or after numbers.
  /// @param text   the beginning of a text, or all of it.
  /// @param known  bytes at its beginning in which there is no such place.
  /// @return   the place, in bytes; 0 when there is none.
  std::size_t last_cut(std::string_view text, std::size_t known) const;

 private:
  class Pattern;
  std::unique_ptr<const Pattern> piece_;
  std::unique_ptr<const Pattern> before_cut_;
};

}  // namespace rankwise
