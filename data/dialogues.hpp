#pragma once

#include "data/grammar.hpp"
#include "data/loader.hpp"

/// @file
/// Text of conversations with known statistics: the default data of a run on pairs.

namespace rankwise {

/// The embedded dialogues: about 300,000 bytes of conversations drawn from dialogue_grammar(), the same in every run.
/// Both splits hold whole conversations; the first ends where 270,000 bytes are reached. A conversation is a question
/// and its answer, each a line of at most 29 bytes, so every pair fits into 64 tokens with its special tokens. The
/// floor is empty: it is the entropy of plain text, not of masked tokens.
Tokens embedded_dialogues();

/// The grammar of the dialogues. Its sentence is a whole conversation, written as one line: question, "/", answer. Each
/// alternative of the first rule is one kind of question, with the answers of that kind.
const Grammar& dialogue_grammar();

}  // namespace rankwise
