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
/// A text is first cut into pieces: a word with the blank before it, a number, a run of signs, a run of white space. Then,
/// inside each piece, neighbours are merged: each byte is a token at first, and as long as two neighbours stand together in
/// the list of merges, the pair that stands highest in the list becomes one token (the leftmost among equals). Bytes that
/// are not UTF-8 form pieces of their own, so any file can be encoded. `<|endoftext|>` has a token, but encode() takes it
/// for ordinary text.
///
/// encode() remembers the pieces that it has seen: an object is used by one thread at a time.
/// @source  Radford et al. 2019, section 2.2; Sennrich et al. 2016, doi:10.18653/v1/P16-1162.
class BpeTokenizer final : public Tokenizer {
 public:
  /// Reads the vocabulary.
  /// @param files  encoder.json: an object that gives each entry a number, each of 0 .. V-1 once; all 256 bytes are among
  ///               them. vocab.bpe: a line "#version...", then a merge a line, two entries with a blank between them
  ///               whose concatenation is an entry too. Both spell bytes as spelling_of_byte() says.
  /// Throws UserError, with the entry or the line, when that is not what they hold.
  explicit BpeTokenizer(const VocabularyFiles& files);

  std::string name() const override { return "gpt2"; }
  Token vocabulary() const override { return static_cast<Token>(bytes_.size()); }
  /// @cost  O(n log n) for a piece of n bytes that was not seen lately. Throws Error at a piece of 2 GiB or more.
  std::vector<Token> encode(std::string_view text) const override;
  std::string decode(std::span<const Token> tokens) const override;
  std::size_t last_cut(std::string_view text, std::size_t known) const override;

 private:
  /// What becomes of two neighbours.
  struct Merge {
    std::int32_t order;  ///< its place in the list: the smallest comes first
    Token result;
  };
  /// Finds a std::string_view among std::strings.
  struct TextHash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  void read_merges(const VocabularyFiles& files, const std::unordered_map<std::string_view, Token>& tokens);
  static std::uint64_t pair_key(Token left, Token right);
  /// Appends the tokens of one piece to @p tokens.
  void encode_piece(std::string_view piece, std::vector<Token>& tokens) const;
  /// The tokens of one piece, computed.
  std::vector<Token> merge_bytes(std::string_view piece) const;

  std::vector<std::string> bytes_;                   // (V): what each token stands for
  std::array<Token, 256> token_of_byte_{};           // where merging begins
  std::unordered_map<std::uint64_t, Merge> merges_;  // by both neighbours
  Pretokenizer pretokenizer_;
  mutable std::unordered_map<std::string, std::vector<Token>, TextHash, std::equal_to<>> seen_;  // pieces
};

/// How GPT-2's files spell a byte: the printable characters of Latin-1 stand for themselves, the 68 others for the
/// characters U+0100 .. U+0143 in their order, so that no entry holds a blank or a control character.
/// @return  one character, UTF-8.
std::string spelling_of_byte(unsigned char byte);

}  // namespace rankwise
