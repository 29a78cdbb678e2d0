#include "data/tokenizer.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"
#include "data/bpe.hpp"

namespace rankwise {

namespace {

[[noreturn]] void refuse_vocabulary(const std::string& path, const std::string& why)
{
  throw UserError(fmt::format("the vocabulary file {} {}.", path, why),
                  "--vocabulary-from names a folder with encoder.json and vocab.bpe. GPT-2's are fetched with:\n"
                  "scripts/fetch_data.sh gpt2-vocabulary     (to build/downloads/gpt2)");
}

std::string read_vocabulary_file(const std::filesystem::path& path)
{
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) refuse_vocabulary(path, "does not exist" + looked_for(path));
  if (!std::filesystem::is_regular_file(status)) refuse_vocabulary(path, "is not a regular file");

  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) refuse_vocabulary(path, "cannot be read: " + std::generic_category().message(errno));
  std::string text, block(1 << 16, '\0');
  while (const std::size_t count = std::fread(block.data(), 1, block.size(), file.get())) {
    text.append(block, 0, count);
    if (static_cast<std::int64_t>(text.size()) > max_vocabulary_file_bytes) {
      refuse_vocabulary(path, fmt::format("has more than {} bytes", group_digits(max_vocabulary_file_bytes)));
    }
  }
  if (std::ferror(file.get()) != 0)
    refuse_vocabulary(path, "cannot be read: " + std::generic_category().message(errno));
  return text;
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
  const std::filesystem::path path(folder);
  return {.encoder_json = read_vocabulary_file(path / "encoder.json"),
          .vocab_bpe = read_vocabulary_file(path / "vocab.bpe"),
          .source = folder};
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
