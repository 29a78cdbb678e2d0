#pragma once

#include <optional>
#include <vector>

#include "data/loader.hpp"
#include "gpt2/training_options.hpp"

/// @file
/// The beginning and the end of a generated text.

namespace rankwise {

/// Reads --prompt-file: once, since it may be a pipe.
/// @throws UserError  if the file cannot be read, or is empty or longer than a million bytes.
void take_prompt(TrainingOptions& options);

/// The tokens that a sample continues: of --prompt, of the content of --prompt-file, which take_prompt() has read, or of a line end.
std::vector<Token> prompt_of(const TrainingOptions& options, const Tokenizer& tokenizer);

/// The token of --stop; nothing without that option.
/// @throws UserError  if its text is not a single token.
std::optional<Token> stop_token(const TrainingOptions& options, const Tokenizer& tokenizer);

/// Refuses to sample when the tokenizer cannot decode a token that the model may draw, or when the prompt or the stop
/// token is not in the model's vocabulary.
/// @throws UserError  with the token and what to change.
void check_prompt(const TrainingOptions& options, const Tokens& tokens);

}  // namespace rankwise
