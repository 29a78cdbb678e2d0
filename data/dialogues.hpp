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

/// What follows from the weights of dialogue_grammar(), for pairs as PairLoader draws them.
///
/// The first line a of a pair is a question; its kind k has probability p_k. A line drawn at random is a question with
/// probability 1/2 (which never follows a question), and else an answer, of kind k with probability p_k. Question and
/// answer share nothing but their kind, so b is consistent with a if it is an answer of a's kind, which a random b is
/// with probability c_k = p_k / 2. All else is a random b for certain. Of a consistent b the best that can be said is
/// P(b follows a) = 1 / (1 + c_k), by Bayes' rule with prior 1/2. (PairLoader never draws the true b. This changes the
/// probabilities by less than 1 / lines.)
struct DialogueStatistics {
  double consistent_by_chance;     ///< sum p_k c_k: probability that a random b is consistent with a
  double best_accuracy;            ///< share of right labels if each consistent b is taken for the true one
  double best_next_sentence_loss;  ///< nats per pair: the entropy of the label, given a and b
  double entropy_per_byte;         ///< nats per byte of a conversation, with its newlines
};

/// The statistics, computed from the weights alone.
DialogueStatistics dialogue_statistics();

}  // namespace rankwise
