#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/pretokenizer.hpp"
#include "data/tokenizer.hpp"

/// @file
/// GPT-2's tokenizer: byte-level byte pair encoding.

namespace rankwise {

/// Byte pair encoding over bytes, with GPT-2's vocabulary (V = 50,257) or one in the same two files.
///
/// A text is first split into pieces: a word with the space before it, a number, a run of punctuation, a run of
/// white space. Inside each piece, neighbours are then merged: at first each byte is a token, and as long as some
/// pair of neighbours is in the list of merges, the pair that comes first in the list becomes one token (the
/// leftmost among equal pairs). Bytes that are not UTF-8 form separate pieces, so any file can be encoded.
/// `<|endoftext|>` has a token, but encode() treats it as ordinary text.
///
/// encode() caches the pieces that it has seen, so an object may be used by one thread at a time only.
/// @source  Radford et al. 2019, section 2.2; Sennrich et al. 2016, doi:10.18653/v1/P16-1162.
class BpeTokenizer final : public Tokenizer {
 public:
  /// Reads the vocabulary.
  /// @param files  encoder.json: an object that assigns each entry one of the numbers 0 .. V-1; all 256 bytes are
  ///               among the entries. vocab.bpe: a line "#version...", then one merge per line: two entries,
  ///               separated by a space, whose concatenation is an entry too. An entry that two others make in a row
  ///               is made by a merge, or special: in angle brackets. Both files spell bytes as spelling_of_byte() does.
  /// Throws UserError, with the entry or the line, when the files are not of this form.
  explicit BpeTokenizer(const VocabularyFiles& files);

  std::string name() const override { return "gpt2"; }
  Token vocabulary() const override { return static_cast<Token>(bytes_.size()); }
  /// @cost  O(n log n) for a piece of n bytes that is not cached. Throws Error at a piece of 2 GiB or more.
  std::vector<Token> encode(std::string_view text) const override;
  std::string decode(std::span<const Token> tokens) const override;
  std::size_t last_cut(std::string_view text, std::size_t known) const override;

 private:
  /// The merge of two neighbours.
  struct Merge {
    std::int32_t order;  ///< position in the list: the smallest is merged first
    Token result;
  };
  /// Hash with which a std::string_view is looked up among std::strings.
  struct TextHash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  void read_merges(const VocabularyFiles& files, const std::unordered_map<std::string_view, Token>& tokens);
  static std::uint64_t pair_key(Token left, Token right);
  /// Appends the tokens of one piece to @p tokens.
  void encode_piece(std::string_view piece, std::vector<Token>& tokens) const;
  /// Computes the tokens of one piece.
  std::vector<Token> merge_bytes(std::string_view piece) const;

  std::vector<std::string> bytes_;                   // (V): bytes of each token
  std::array<Token, 256> token_of_byte_{};           // tokens of single bytes, with which merging begins
  std::unordered_map<std::uint64_t, Merge> merges_;  // merges, keyed by both neighbours
  Pretokenizer pretokenizer_;
  mutable std::unordered_map<std::string, std::vector<Token>, TextHash, std::equal_to<>> seen_;  // pieces
};

/// The spelling of a byte in GPT-2's files: the printable characters of Latin-1 stand for themselves, the 68 other
/// bytes are spelled as the characters U+0100 .. U+0143 in
/// order, so that no entry has a space or a control character.
/// @return  one UTF-8 character.
std::string spelling_of_byte(unsigned char byte);

}  // namespace rankwise
