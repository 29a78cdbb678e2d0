#include "data/corpus.hpp"

#include <optional>
#include <span>

#include "common/base/digest.hpp"
#include "data/grammar.hpp"

namespace rankwise {

namespace {

constexpr std::uint32_t corpus_seed = 1;
constexpr std::size_t corpus_bytes = 300'000;
constexpr std::size_t corpus_train_bytes = corpus_bytes / 10 * 9;

}  // namespace

Tokens tokens_of_bytes(std::string_view text, std::size_t train_bytes, const std::string& name)
{
  const auto tokenizer = std::make_shared<const ByteTokenizer>();
  Sha256 digest;
  digest.update(std::as_bytes(std::span(text)));
  return {.train = std::make_shared<MemoryTokens>(tokenizer->encode(text.substr(0, train_bytes))),
          .validation = std::make_shared<MemoryTokens>(tokenizer->encode(text.substr(train_bytes))),
          .vocabulary = tokenizer->vocabulary(),
          .name = name,
          .tokenizer = tokenizer,
          .sha256 = digest.hex(),
          .floor = std::nullopt};
}

Tokens embedded_corpus()
{
  Tokens tokens = tokens_of_bytes(embedded_grammar().text(corpus_seed, corpus_bytes), corpus_train_bytes,
                                  "the embedded corpus");
  tokens.floor = embedded_grammar().entropy_per_byte();
  return tokens;
}

}  // namespace rankwise
