#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/files/hdf5.hpp"
#include "common/files/sealed_file.hpp"
#include "data/loader.hpp"

/// @file
/// Token files: text that `build/data/prepare` has encoded once, so that every run can read any part of it.
///
/// An HDF5 file with the datasets `train` and `validation`, each a row of unsigned integers (1 byte per token up to
/// vocabulary 256, 2 up to 65,536, else 4) in checksummed chunks, and the attributes `vocabulary`, `tokenizer`,
/// `source` (file name of the text) and `source_sha256`, sealed as "rankwise tokens", version 2
/// (common/files/sealed_file.hpp). A file with GPT-2's tokens includes the vocabulary: the datasets `encoder.json`
/// and `vocab.bpe` hold the bytes of those files.

namespace rankwise {

/// The name in the seal of a token file.
inline constexpr std::string_view token_seal = "rankwise tokens";

/// Description of the tokens in a token file.
struct TokenFileInfo {
  std::int64_t vocabulary = 0;  ///< every token is in [0, vocabulary)
  std::string tokenizer;        ///< the tokenizer's name
  std::string source;           ///< file name of the text, without folders
  std::string source_sha256;    ///< SHA-256 of the text, 64 hexadecimal digits
  VocabularyFiles files = {};   ///< vocabulary of the tokenizer, if it needs_vocabulary_files()
};

/// The two splits of a token file.
enum class TextSplit { train, validation };

/// Writes a token file. The tokens go to a temporary file, and finish() gives it its name, so an incomplete file
/// never has that name. Without finish() the destructor removes the temporary file.
class TokenFileWriter {
 public:
  /// Creates the temporary file. Throws Error when it cannot be created.
  TokenFileWriter(const std::string& path, const TokenFileInfo& info);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  /// Appends @p tokens to @p split. Throws Error at a token outside [0, vocabulary).
  void append(TextSplit split, std::span<const Token> tokens);
  /// Closes the file, reads its tokens again, seals and renames it (commit_sealed()); an existing file is replaced.
  /// The writer cannot be used afterwards.
  /// @failure  Error, also when the file does not hold the appended tokens.
  void finish();

 private:
  /// The tokens that were appended to a split.
  struct Written {
    Hdf5Object dataset;
    std::int64_t tokens = 0;
    std::uint64_t digest = 0;  // placed_digest() of the tokens
  };

  void check_written() const;

  std::string path_;
  Token vocabulary_;
  Hdf5Object file_;
  std::array<Written, 2> splits_;
  bool finished_ = false;
};

/// Opens a token file and checks it: its seal, both datasets, and that no token is outside its vocabulary (read in
/// blocks, if the integer type could hold such a token). The file stays open while the Tokens live; windows are
/// read from it as they are needed.
/// @return   the data; `Tokens::name` is @p path.
/// @cost     reads the file once, for its digest.
/// Throws UserError when the file is missing, unreadable, damaged, or not a token file of this version.
Tokens open_token_file(const std::string& path);

}  // namespace rankwise
