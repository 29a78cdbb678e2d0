#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/files/hdf5.hpp"
#include "common/files/sealed_file.hpp"
#include "data/loader.hpp"

/// @file
/// Token files: text that `build/data/prepare` has turned into tokens once, so that every run can read any part of it.
///
/// An HDF5 file with the datasets `train` and `validation`, one row of unsigned integers each (1 byte a token up to
/// vocabulary 256, 2 up to 65,536, else 4), in checksummed chunks, and the attributes `vocabulary`, `tokenizer`, `source`
/// (file name of the text) and `source_sha256`, sealed as "rankwise tokens", version 2 (common/files/sealed_file.hpp). Tokens of
/// GPT-2's vocabulary bring it along: the datasets `encoder.json` and `vocab.bpe` hold the bytes of those files.

namespace rankwise {

/// What a token file says about its tokens.
struct TokenFileInfo {
  std::int64_t vocabulary = 0;  ///< every token is in [0, vocabulary)
  std::string tokenizer;        ///< the tokenizer's name
  std::string source;           ///< file name of the text, without folders
  std::string source_sha256;    ///< of the text, 64 hexadecimal digits
  VocabularyFiles files = {};   ///< what the tokenizer is made from, if it needs_vocabulary_files()
};

/// The two parts of a token file.
enum class TextSplit { train, validation };

/// Writes a token file. Nothing is seen under its name until it is complete: the tokens go to a temporary file, and finish()
/// gives it its name. Without finish() the destructor removes the temporary file.
class TokenFileWriter {
 public:
  /// Creates the temporary file. Throws Error when it cannot be created.
  TokenFileWriter(const std::string& path, const TokenFileInfo& info);
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  /// Adds @p tokens, each in [0, vocabulary) or Error is thrown, to the end of @p split.
  void append(TextSplit split, std::span<const Token> tokens);
  /// Closes the file, reads its tokens again, seals and renames it (commit_sealed()); any file of that name is replaced. The
  /// writer cannot be used afterwards.
  /// @failure  Error, also when the file does not hold what was appended.
  void finish();

 private:
  /// What was appended to a split.
  struct Written {
    Hdf5Object dataset;
    std::int64_t tokens = 0;
    std::uint64_t digest = 0;  // placed_digest() of them
  };

  void check_written() const;

  std::string path_;
  Token vocabulary_;
  Hdf5Object file_;
  std::array<Written, 2> splits_;
  bool finished_ = false;
};

/// Opens a token file and checks it: its seal, both datasets, and that no token is beyond its vocabulary
/// (read through in blocks where the integers could hold one). The file stays open while the Tokens live; windows are
/// read from it as they are needed.
/// @return   the data; `Tokens::name` is @p path.
/// @cost     reads the file once, for its digest.
/// Throws UserError when the file is missing, unreadable, damaged, or not a token file that this program understands.
Tokens open_token_file(const std::string& path);

}  // namespace rankwise
