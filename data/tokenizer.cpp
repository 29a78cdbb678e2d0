#include "data/tokenizer.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"
#include "common/files/plain_text.hpp"
#include "data/bpe.hpp"

namespace rankwise {

namespace {

/// Content of one of the two files of a vocabulary.
/// @param[in,out] name        OpenAI's name of it; on return the one under which it was found,
/// @param         other_name  which may be Hugging Face's.
std::string read_vocabulary_file(const std::filesystem::path& folder, std::string& name, const char* other_name)
{
  std::error_code error;
  const bool has_other = std::filesystem::exists(folder / other_name, error);
  if (has_other && std::filesystem::exists(folder / name, error))
    throw UserError(fmt::format("the folder {} has both {} and {}.", folder.string(), name, other_name),
                    "They are two names of the same file of a vocabulary. Keep one of them.");
  if (has_other) name = other_name;
  const std::string path = folder / name;
  return whole_text(path, {.asked = "the vocabulary file " + path, .remedy = where_vocabularies_come_from},
                    max_vocabulary_file_bytes);
}

}  // namespace

// ---- Bytes -----------------------------------------------------------------------------------------------------

std::vector<Token> ByteTokenizer::encode(std::string_view text) const
{
  std::vector<Token> tokens(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) tokens[i] = static_cast<unsigned char>(text[i]);
  return tokens;
}

std::string ByteTokenizer::decode(std::span<const Token> tokens) const
{
  std::string text(tokens.size(), '\0');
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    check(0 <= tokens[i] && tokens[i] < vocabulary(), fmt::format("token {} is not a byte", tokens[i]));
    text[i] = static_cast<char>(tokens[i]);
  }
  return text;
}

std::size_t ByteTokenizer::last_cut(std::string_view text, std::size_t /*known*/) const
{
  return text.size();
}

// ---- By name ---------------------------------------------------------------------------------------------------

VocabularyFiles read_vocabulary_files(const std::string& folder)
{
  VocabularyFiles files;
  files.source = folder;
  files.encoder_json = read_vocabulary_file(folder, files.entries_file, "vocab.json");
  files.vocab_bpe = read_vocabulary_file(folder, files.merges_file, "merges.txt");
  return files;
}

std::vector<std::string> tokenizer_names()
{
  return {"byte", "gpt2"};
}

bool needs_vocabulary_files(const std::string& name)
{
  return name == "gpt2";
}

std::unique_ptr<const Tokenizer> make_tokenizer(const std::string& name, const VocabularyFiles& files)
{
  if (name == "byte") return std::make_unique<ByteTokenizer>();
  if (name == "gpt2") return std::make_unique<BpeTokenizer>(files);
  throw UserError(fmt::format("--tokenizer={} is not known.", name),
                  fmt::format("Use --tokenizer={}.", one_of(tokenizer_names())));
}

}  // namespace rankwise
