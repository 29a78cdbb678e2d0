#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/loader.hpp"

/// @file
/// Index of the lines of a text of conversations.

namespace rankwise {

/// The lines of a text that has one utterance per line, and an empty line between conversations.
///
/// A line is a run of tokens that hold no newline. One newline separates it from the next line of its conversation,
/// two or more end the conversation. A tokenizer may have tokens of several newlines, as GPT-2's has for two; each
/// token whose text holds a newline separates lines, and as many newlines count as it holds. White space at the end of a
/// line, such as the carriage return of other systems' line ends, is no part of it, and a line of nothing else is empty.
/// At the beginning and the end of a split of a text there may be a piece of a line; it counts as a line.
///
/// Lines are numbered 0 .. lines()-1, first those that another line of their conversation follows, in the order of the
/// text, then the last lines of conversations. So pair p, the p-th line with a successor and that successor, begins
/// with line p.
///
/// @cost  8 bytes per line, and V bytes; the constructor reads the source once, in blocks.
class LineIndex {
 public:
  /// Finds the lines of @p source.
  /// @param tokenizer  the tokenizer that encoded the text. Throws Error unless "\n" is one token.
  LineIndex(std::shared_ptr<const TokenSource> source, const Tokenizer& tokenizer);

  /// Number of lines.
  std::int64_t lines() const { return pairs() + static_cast<std::int64_t>(last_.size()); }
  /// Number of pairs of neighbouring lines of one conversation.
  std::int64_t pairs() const { return static_cast<std::int64_t>(followed_.size()); }
  /// Tokens of the shortest pair; 0 if there are no pairs.
  std::int64_t shortest_pair() const { return shortest_pair_; }
  /// The number of the line that follows line @p pair in its conversation, 0 <= pair < pairs().
  std::int64_t successor(std::int64_t pair) const;
  /// The first tokens of line @p line, at most @p limit, >= 1.
  std::vector<Token> read(std::int64_t line, std::int64_t limit) const;

 private:
  void find_lines();
  int newlines_of(Token token) const { return newlines_[static_cast<std::size_t>(token)]; }

  std::shared_ptr<const TokenSource> source_;
  std::vector<std::int8_t>
      newlines_;  // (V): number of newlines in each token; only_blanks for white space without any
  std::vector<std::int64_t> followed_;  // first token of each line with a successor
  std::vector<std::int64_t> last_;      // first token of each last line of a conversation
  std::int64_t shortest_pair_ = 0;
};

}  // namespace rankwise
