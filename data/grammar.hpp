#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// @file
/// Text with a known entropy: sentences drawn from a weighted grammar.

namespace rankwise {

/// An unambiguous weighted context-free grammar: each sentence has exactly one derivation. The author of the rules
/// has to ensure this; the tests check it for the embedded rules.
///
/// So the probability of a sentence is the product of the probabilities of its choices, and the entropy of a
/// sentence is the sum, over the rules, of the expected number of uses times the entropy of the choice. Divided by
/// the expected length this is the entropy per byte: no predictor, however good, has a lower mean loss.
///
/// A grammar is written as text, one rule per line; the first rule is a sentence:
///
///     Clause: 3 the {Noun} {Verb}s | 1 it {Verb}s
///     Noun:   1 owl | 1 fox
///     Verb:   2 run | 1 hide
///
/// `Name:` is followed by alternatives, each an integer weight and its text; `{Name}` stands for a choice of that
/// rule; a line that begins with a space continues the rule above. A sentence is followed by a newline, which no
/// rule contains, so there is only one way to split a text into sentences.
class Grammar {
 public:
  /// A symbol of an alternative: literal bytes, or the index of a rule.
  struct Symbol {
    std::string text;  ///< the bytes; empty when @p rule is used
    int rule = -1;     ///< index of the rule, or -1
  };
  /// One of the choices of a rule.
  struct Alternative {
    std::int64_t weight = 0;      ///< its probability is weight / Rule::total
    std::vector<Symbol> symbols;  ///< right-hand side
  };
  /// A named choice.
  struct Rule {
    std::string name;                       ///< name as written
    std::int64_t total = 0;                 ///< the sum of the weights, 1 <= total < 2^32
    std::vector<Alternative> alternatives;  ///< at least one
  };

  /// Parses @p rules. Throws Error at a line that is not of the form above, at a name with no rule or with two, and
  /// when sentences have no finite expected length.
  explicit Grammar(std::string_view rules);

  /// The rules, the sentence first.
  const std::vector<Rule>& rules() const { return rules_; }
  /// Expected number of uses of each rule in one sentence.
  const std::vector<double>& expected_uses() const { return uses_; }
  /// Entropy of one sentence, in nats.
  double entropy_per_sentence() const;
  /// Expected length of one sentence in bytes, with its newline.
  double bytes_per_sentence() const;
  /// The floor: entropy_per_sentence() / bytes_per_sentence(), in nats per byte.
  double entropy_per_byte() const { return entropy_per_sentence() / bytes_per_sentence(); }

  /// Sentence @p number of the infinite text of @p seed, with its newline: the same bytes on every machine, because
  /// only integer arithmetic and Philox are used.
  std::string sentence(std::uint32_t seed, std::uint32_t number) const;
  /// The first @p bytes bytes of that text; the last sentence may be truncated.
  std::string text(std::uint32_t seed, std::size_t bytes) const;

 private:
  std::vector<Rule> rules_;
  std::vector<double> uses_;
};

/// The grammar of the embedded corpus.
const Grammar& embedded_grammar();

}  // namespace rankwise
