#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "data/token_file.hpp"

/// @file
/// From a text to a token file: what `build/data/prepare` does. The text is read twice, in blocks, and never held whole.

namespace rankwise {

/// What the first reading of a text finds out.
struct TextMeasure {
  std::int64_t bytes = 0;       ///< length of the file
  std::int64_t characters = 0;  ///< UTF-8 characters: bytes that do not continue one
  std::string sha256;           ///< of its bytes

  /// Characters that are trained on, the first 90 % rounded down; the rest is for validation.
  std::int64_t train_characters() const { return characters / 10 * 9 + characters % 10 * 9 / 10; }
};

/// Measures the text in @p path.
/// Throws UserError when it is missing, not a regular file, not readable or empty.
TextMeasure measure_text(const std::string& path);

/// Bytes of @p text that belong to its first @p characters characters, and counts those down.
/// @param[in]     text        a piece of a text; it may begin or end inside a character.
/// @param[in,out] characters  how many may still come; on return less those that begin in the piece.
std::size_t take_characters(std::string_view text, std::int64_t& characters);

/// Encodes a text that comes in blocks: the tokens are those of the whole text, however it is cut into blocks.
class BlockEncoder {
 public:
  /// Receives tokens, in order.
  using Use = std::function<void(std::span<const Token>)>;
  /// @param tokenizer  makes the tokens; it must outlive this object.
  /// @param use        gets them as soon as nothing that may follow can change them.
  BlockEncoder(const Tokenizer& tokenizer, Use use) : tokenizer_(tokenizer), use_(std::move(use)) {}

  /// Takes the next block. Throws Error when more than 64 MiB stand without a place where the tokenizer could cut them.
  void add(std::string_view block);
  /// Encodes what is left: the text ends here. Another may begin.
  void finish();

 private:
  const Tokenizer& tokenizer_;
  Use use_;
  std::string waiting_;  // text behind the last cut
};

/// Writes the tokens of the text in @p path, cut in two between characters as @p measure says. Each part is encoded by
/// itself.
/// @param path       a text that measure_text() has measured; Error when it has changed since.
/// @param measure    what that found.
/// @param tokenizer  makes the tokens.
/// @param out        receives them; the caller finishes it.
/// @param progress   called now and then with the bytes that have been read.
void write_tokens(const std::string& path, const TextMeasure& measure, const Tokenizer& tokenizer,
                  TokenFileWriter& out, const std::function<void(std::int64_t)>& progress);

}  // namespace rankwise
