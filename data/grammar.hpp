#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// @file
/// Text with a known entropy: sentences drawn from a weighted grammar.

namespace rankwise {

/// A weighted context-free grammar without ambiguity: each sentence has exactly one derivation (whoever writes the rules
/// sees to that; the tests show it for the embedded ones).
///
/// Then the probability of a sentence is the product of the probabilities of the choices that made it, and the entropy
/// of a sentence is the sum, over the rules, of the expected number of uses times the entropy of the choice. Divided
/// by the expected length this is the entropy per byte: no predictor, however good, has a lower mean loss.
///
/// Written as text, one rule a line; the first rule is a sentence:
///
///     Clause: 3 the {Noun} {Verb}s | 1 it {Verb}s
///     Noun:   1 owl | 1 fox
///     Verb:   2 run | 1 hide
///
/// `Name:` then alternatives, each an integer weight and its text; `{Name}` stands for a choice of that rule; a line
/// that begins with a space continues the rule above. A sentence is followed by a newline, which no rule contains, so
/// there is only one way to cut a text into sentences.
class Grammar {
 public:
  /// A piece of an alternative: bytes as they are, or the number of the rule that continues here.
  struct Symbol {
    std::string text;  ///< the bytes; empty when @p rule is used
    int rule = -1;     ///< the rule, or -1
  };
  /// One of the choices of a rule.
  struct Alternative {
    std::int64_t weight = 0;      ///< its probability is weight / Rule::total
    std::vector<Symbol> symbols;  ///< what it stands for
  };
  /// A named choice.
  struct Rule {
    std::string name;                       ///< as written
    std::int64_t total = 0;                 ///< the sum of the weights, 1 <= total < 2^32
    std::vector<Alternative> alternatives;  ///< at least one
  };

  /// Reads @p rules. Throws Error at a line that breaks the form above, at a name with no rule or with two, and when
  /// sentences have no finite expected length.
  explicit Grammar(std::string_view rules);

  /// The rules, the sentence first.
  const std::vector<Rule>& rules() const { return rules_; }
  /// Expected uses of each rule in one sentence.
  const std::vector<double>& expected_uses() const { return uses_; }
  /// Entropy of one sentence, nats.
  double entropy_per_sentence() const;
  /// Expected bytes of one sentence with its newline.
  double bytes_per_sentence() const;
  /// The floor: entropy_per_sentence() / bytes_per_sentence(), nats per byte.
  double entropy_per_byte() const { return entropy_per_sentence() / bytes_per_sentence(); }

  /// Sentence @p number of the endless text of @p seed, with its newline: the same bytes everywhere, since only
  /// integers and Philox take part.
  std::string sentence(std::uint32_t seed, std::uint32_t number) const;
  /// The first @p bytes bytes of that text; the last sentence may be cut.
  std::string text(std::uint32_t seed, std::size_t bytes) const;

 private:
  std::vector<Rule> rules_;
  std::vector<double> uses_;
};

/// The grammar of the embedded corpus.
const Grammar& embedded_grammar();

/// The rules of the embedded corpus as they are written.
std::string_view embedded_rules();

}  // namespace rankwise
