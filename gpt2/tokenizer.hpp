#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// @file
/// From text to tokens and back.

namespace rankwise {

/// The number of a vocabulary entry: 0 <= token < vocabulary. -1 stands for "not counted" in targets.
using Token = std::int32_t;

/// A one-to-one map between text and tokens.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// The name that `--tokenizer` and token files use.
  virtual std::string name() const = 0;
  /// V: every token is in [0, V).
  virtual Token vocabulary() const = 0;
  /// The tokens of @p text, in order.
  virtual std::vector<Token> encode(std::string_view text) const = 0;
  /// The text of @p tokens: decode(encode(text)) == text. Throws Error at a token outside [0, V).
  virtual std::string decode(std::span<const Token> tokens) const = 0;
};

/// Each byte is one token, V = 256: nothing to learn, nothing to store, and any file is valid text.
class ByteTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "byte"; }
  Token vocabulary() const override { return 256; }
  std::vector<Token> encode(std::string_view text) const override;
  std::string decode(std::span<const Token> tokens) const override;
};

/// The names that make_tokenizer() knows.
std::vector<std::string> tokenizer_names();

/// The tokenizer called @p name. Throws UserError, with the choices, when there is none.
std::unique_ptr<const Tokenizer> make_tokenizer(const std::string& name);

}  // namespace rankwise
