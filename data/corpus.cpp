#include "data/corpus.hpp"

#include <span>
#include <vector>

#include "common/base/digest.hpp"
#include "data/grammar.hpp"
#include "data/token_file.hpp"

namespace rankwise {

namespace {

constexpr std::uint32_t corpus_seed = 1;
constexpr std::size_t corpus_bytes = 300'000;
constexpr std::size_t train_bytes = corpus_bytes / 10 * 9;

}  // namespace

Tokens embedded_corpus()
{
  const std::string text = embedded_grammar().text(corpus_seed, corpus_bytes);
  const auto tokenizer = std::make_shared<const ByteTokenizer>();
  const std::vector<Token> all = tokenizer->encode(text);
  const auto cut = all.begin() + train_bytes;

  Sha256 digest;
  digest.update(std::as_bytes(std::span(text)));
  return {.train = std::make_shared<MemoryTokens>(std::vector<Token>(all.begin(), cut)),
          .validation = std::make_shared<MemoryTokens>(std::vector<Token>(cut, all.end())),
          .vocabulary = tokenizer->vocabulary(),
          .name = "the embedded corpus",
          .tokenizer = tokenizer,
          .sha256 = digest.hex(),
          .floor = embedded_grammar().entropy_per_byte()};
}

Tokens open_corpus(const std::string& path)
{
  return path.empty() ? embedded_corpus() : open_token_file(path);
}

}  // namespace rankwise
