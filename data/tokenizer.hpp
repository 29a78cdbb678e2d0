#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// @file
/// Tokenizers: conversion of text to tokens and back.

namespace rankwise {

/// Index of a vocabulary entry: 0 <= token < vocabulary. In targets, -1 means "not counted".
using Token = std::int32_t;

/// An invertible map from text to tokens.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// The name that `--tokenizer` and token files use.
  virtual std::string name() const = 0;
  /// V: every token is in [0, V).
  virtual Token vocabulary() const = 0;
  /// The tokens of @p text, any bytes, in order.
  virtual std::vector<Token> encode(std::string_view text) const = 0;
  /// The text of @p tokens: decode(encode(text)) == text. Throws Error at a token outside [0, V).
  virtual std::string decode(std::span<const Token> tokens) const = 0;
  /// The last position at which a long text may be cut, so that it can be encoded in pieces.
  /// @param text   the beginning of a text; the rest is not known yet.
  /// @param known  number of bytes at its beginning that were searched before without finding such a position.
  /// @return   the last position p <= |text| found such that encode(text + any) is encode(text[0, p)) followed by
  ///           encode(text[p, end) + any), for any continuation; 0 when there is none.
  virtual std::size_t last_cut(std::string_view text, std::size_t known) const = 0;
};

/// Each byte is one token, V = 256: no vocabulary has to be learned or stored, and any file is valid text.
class ByteTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "byte"; }
  Token vocabulary() const override { return 256; }
  std::vector<Token> encode(std::string_view text) const override;
  std::string decode(std::span<const Token> tokens) const override;
  std::size_t last_cut(std::string_view text, std::size_t known) const override;
};

/// The contents, not yet parsed, of the two files in which GPT-2's vocabulary is published.
struct VocabularyFiles {
  std::string encoder_json;                   ///< encoder.json: the number of each entry
  std::string vocab_bpe;                      ///< vocab.bpe: the merges, in the order in which they were learned
  std::string source;                         ///< origin for messages: a folder or a token file
  std::string entries_file = "encoder.json";  ///< name under which encoder.json was found
  std::string merges_file = "vocab.bpe";      ///< name under which vocab.bpe was found
};

/// Size limit of a vocabulary file: GPT-2's have 1.0 and 0.5 million bytes.
constexpr std::int64_t max_vocabulary_file_bytes = 16 << 20;

/// Advice for a vocabulary that cannot be used.
inline constexpr const char* where_vocabularies_come_from =
    "--vocabulary-from names a folder with encoder.json and vocab.bpe, or with vocab.json and merges.txt. GPT-2's "
    "are "
    "fetched with:\n"
    "scripts/fetch_data.sh gpt2-vocabulary     (to build/downloads/gpt2)";

/// Reads encoder.json and vocab.bpe in @p folder, or vocab.json and merges.txt, which are Hugging Face's names of them.
/// Throws UserError when one of them is missing, not readable, no text or larger than max_vocabulary_file_bytes.
VocabularyFiles read_vocabulary_files(const std::string& folder);

/// The names that make_tokenizer() knows.
std::vector<std::string> tokenizer_names();

/// True if the tokenizer called @p name needs vocabulary files.
bool needs_vocabulary_files(const std::string& name);

/// Creates the tokenizer called @p name.
/// @param name   "byte" or "gpt2".
/// @param files  the vocabulary, if needs_vocabulary_files().
/// Throws UserError when there is no such tokenizer, with the choices, or when the files hold no valid vocabulary.
std::unique_ptr<const Tokenizer> make_tokenizer(const std::string& name, const VocabularyFiles& files = {});

}  // namespace rankwise
