#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "data/loader.hpp"

/// @file
/// Data of a run that are no file: the embedded corpus.

namespace rankwise {

/// Tokens of a text of bytes: each byte is a token.
/// @param text         the text.
/// @param train_bytes  number of bytes at its beginning to train on; the rest is for validation.
/// @param name         name in messages.
Tokens tokens_of_bytes(std::string_view text, std::size_t train_bytes, const std::string& name);

/// The embedded corpus: 300,000 bytes of embedded_grammar(), generated in a few milliseconds, the same in every
/// run; the first 270,000 for training, the last 30,000 for validation. Its floor is known.
Tokens embedded_corpus();

}  // namespace rankwise
