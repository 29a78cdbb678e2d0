#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "data/token_file.hpp"

/// @file
/// The conversion of a text to a token file, for `build/data/prepare`. The text is read twice, in blocks, and is
/// never in memory as a whole. A byte-order mark is left out; all other bytes become tokens as they are.

namespace rankwise {

/// Results of the first pass over a text.
struct TextMeasure {
  std::int64_t bytes = 0;       ///< length, without a byte-order mark
  std::int64_t characters = 0;  ///< number of UTF-8 characters: bytes that are not continuation bytes
  std::string sha256;           ///< SHA-256 of these bytes
  /// Notes for the user about the text, a line each: bytes that are not UTF-8, line ends of two bytes, marks that
  /// are read as text.
  std::string notes;

  /// Characters of the training split, the first 90 % rounded down; the rest is for validation.
  std::int64_t train_characters() const { return characters / 10 * 9 + characters % 10 * 9 / 10; }
};

/// Measures the text in @p path.
/// Throws UserError when it is missing, not a regular file, not readable, empty or no text: read_text() finds that by its
/// first bytes, and a byte 0 is in no text.
TextMeasure measure_text(const std::string& path);

/// The number of bytes of @p text that belong to its first @p characters characters; counts @p characters down.
/// @param[in]     text        a block of a text; it may begin or end inside a character.
/// @param[in,out] characters  number of characters wanted; on return reduced by those that begin in the block.
std::size_t take_characters(std::string_view text, std::int64_t& characters);

/// Encodes a text that arrives in blocks: the tokens do not depend on how the text is divided into blocks.
class BlockEncoder {
 public:
  /// Receives tokens, in order.
  using Use = std::function<void(std::span<const Token>)>;
  /// @param tokenizer  encodes the text; it must outlive this object.
  /// @param use        receives tokens as soon as the rest of the text can no longer change them.
  BlockEncoder(const Tokenizer& tokenizer, Use use) : tokenizer_(tokenizer), use_(std::move(use)) {}

  /// Adds the next block. Throws Error when the tokenizer finds no position to split more than 64 MiB of text.
  void add(std::string_view block);
  /// Encodes the rest: the text ends here. Another text may begin.
  void finish();

 private:
  const Tokenizer& tokenizer_;
  Use use_;
  std::string waiting_;  // text after the last cut
};

/// Writes the tokens of the text in @p path, split in two at the character that @p measure gives. Each split is
/// encoded separately.
/// @param path       a text that measure_text() has measured; Error when it has changed since.
/// @param measure    the result of measure_text().
/// @param tokenizer  encodes the text.
/// @param out        receives the tokens; the caller finishes it.
/// @param progress   called from time to time with the number of bytes read.
void write_tokens(const std::string& path, const TextMeasure& measure, const Tokenizer& tokenizer,
                  TokenFileWriter& out, const std::function<void(std::int64_t)>& progress);

}  // namespace rankwise
