#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.hpp"
#include "data/corpus.hpp"
#include "data/grammar.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

/// All ways to read a sentence with a grammar. It knows the rules and nothing of how sentences are made.
class Parser {
 public:
  /// A piece of text from a known first byte to @p end.
  struct Reading {
    std::size_t end = 0;
    double derivations = 0;  // how many
    double probability = 0;  // of all of them together
  };

  explicit Parser(const Grammar& grammar) : grammar_(grammar) {}

  /// The readings of @p text as a whole sentence, without its newline.
  Reading read(const std::string& text)
  {
    text_ = text;
    known_.clear();
    for (const Reading& reading : rule(0, 0)) {
      if (reading.end == text.size()) return reading;
    }
    return {};
  }

 private:
  std::vector<Reading> rule(int number, std::size_t first)
  {
    const auto key = std::pair(number, first);
    if (const auto found = known_.find(key); found != known_.end()) return found->second;
    const Grammar::Rule& definition = grammar_.rules()[static_cast<std::size_t>(number)];
    std::map<std::size_t, Reading> by_end;
    for (const auto& alternative : definition.alternatives) {
      const double p = static_cast<double>(alternative.weight) / static_cast<double>(definition.total);
      for (const Reading& reading : row(alternative.symbols, 0, first)) {
        Reading& sum = by_end[reading.end];
        sum.end = reading.end;
        sum.derivations += reading.derivations;
        sum.probability += p * reading.probability;
      }
    }
    std::vector<Reading> readings;
    for (const auto& [end, reading] : by_end) readings.push_back(reading);
    return known_[key] = readings;
  }

  std::vector<Reading> row(const std::vector<Grammar::Symbol>& symbols, std::size_t s, std::size_t first)
  {
    if (s == symbols.size()) return {{first, 1, 1}};
    const Grammar::Symbol& symbol = symbols[s];
    if (symbol.rule < 0) {
      if (text_.compare(first, symbol.text.size(), symbol.text) != 0) return {};
      return row(symbols, s + 1, first + symbol.text.size());
    }
    std::vector<Reading> readings;
    for (const Reading& head : rule(symbol.rule, first)) {
      for (const Reading& tail : row(symbols, s + 1, head.end)) {
        readings.push_back({tail.end, head.derivations * tail.derivations, head.probability * tail.probability});
      }
    }
    return readings;
  }

  const Grammar& grammar_;
  std::string text_;
  std::map<std::pair<int, std::size_t>, std::vector<Reading>> known_;
};

/// One derivation: its text and its probability.
struct Derivation {
  std::string text;
  double probability;
};

/// Every derivation of @p number in which @p nested, a rule that contains itself, is used at most @p depth deep.
std::vector<Derivation> all_derivations(const Grammar& grammar, int number, const std::set<int>& nested, int depth)
{
  if (nested.contains(number) && depth-- == 0) return {};
  std::vector<Derivation> all;
  const Grammar::Rule& rule = grammar.rules()[static_cast<std::size_t>(number)];
  for (const auto& alternative : rule.alternatives) {
    std::vector<Derivation> rows{{"", static_cast<double>(alternative.weight) / static_cast<double>(rule.total)}};
    for (const auto& symbol : alternative.symbols) {
      const std::vector<Derivation> next = symbol.rule < 0 ? std::vector<Derivation>{{symbol.text, 1.0}}
                                                           : all_derivations(grammar, symbol.rule, nested, depth);
      std::vector<Derivation> longer;
      for (const auto& row : rows) {
        for (const auto& piece : next)
          longer.push_back({row.text + piece.text, row.probability * piece.probability});
      }
      rows = std::move(longer);
    }
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

/// Whether a rule is a list of words: no alternative names another rule.
bool is_word_list(const Grammar::Rule& rule)
{
  for (const auto& alternative : rule.alternatives) {
    for (const auto& symbol : alternative.symbols) {
      if (symbol.rule >= 0) return false;
    }
  }
  return true;
}

/// The embedded rules with only the first word of each list.
std::string rules_with_one_word_each()
{
  std::string rules;
  for (const auto& rule : embedded_grammar().rules()) {
    rules += rule.name + ":";
    std::string bar = " ";
    for (const auto& alternative : rule.alternatives) {
      rules += bar + std::to_string(alternative.weight) + " ";
      bar = " | ";
      for (const auto& symbol : alternative.symbols) {
        rules += symbol.rule < 0
                     ? symbol.text
                     : "{" + embedded_grammar().rules()[static_cast<std::size_t>(symbol.rule)].name + "}";
      }
      if (is_word_list(rule)) break;
    }
    rules += "\n";
  }
  return rules;
}

int rule_called(const Grammar& grammar, const std::string& name)
{
  for (std::size_t i = 0; i < grammar.rules().size(); ++i) {
    if (grammar.rules()[i].name == name) return static_cast<int>(i);
  }
  FAIL("no rule is called " << name);
  return -1;
}

}  // namespace

TEST_CASE("Grammar: entropy and length of small grammars are those worked out by hand")
{
  // Two words of probability 3/4 and 1/4, and their newlines.
  const Grammar two("Word: 3 ab | 1 cdef");
  CHECK(two.entropy_per_sentence() == Approx(0.75 * std::log(4.0 / 3) + 0.25 * std::log(4.0)).epsilon(1e-14));
  CHECK(two.bytes_per_sentence() == Approx(0.75 * 2 + 0.25 * 4 + 1).epsilon(1e-14));

  // "a", "aa", "aaa", ... of probability 1/2, 1/4, 1/8, ...: entropy 2 ln 2, length 2.
  const Grammar geometric("S: 1 a | 1 a{S}");
  CHECK(geometric.entropy_per_sentence() == Approx(2 * std::log(2.0)).epsilon(1e-14));
  CHECK(geometric.bytes_per_sentence() == Approx(3).epsilon(1e-14));
  CHECK(geometric.expected_uses()[0] == Approx(2).epsilon(1e-14));
}

TEST_CASE("Grammar: the sum over rules is -sum p ln p over all sentences, where these can be listed")
{
  const Grammar grammar(
      "Clause: 3 the {Noun} {Verb}s\n"
      "      | 1 it {Verb}s | 2 the {Noun} and the {Noun} {Verb}\n"
      "Noun:   1 owl | 5 fox\n"
      "Verb:   2 run | 1 hide | 4 see{Noun}");
  double entropy = 0, bytes = 0, total = 0;
  for (const Derivation& sentence : all_derivations(grammar, 0, {}, 0)) {
    total += sentence.probability;
    entropy -= sentence.probability * std::log(sentence.probability);
    bytes += sentence.probability * static_cast<double>(sentence.text.size() + 1);
  }
  CHECK(total == Approx(1).epsilon(1e-12));
  CHECK(grammar.entropy_per_sentence() == Approx(entropy).epsilon(1e-12));
  CHECK(grammar.bytes_per_sentence() == Approx(bytes).epsilon(1e-12));
}

TEST_CASE("Grammar: rules that break the form are an error")
{
  CHECK_THROWS_AS(Grammar(""), Error);
  CHECK_THROWS_AS(Grammar("no colon"), Error);
  CHECK_THROWS_AS(Grammar(" | 1 a"), Error);
  CHECK_THROWS_AS(Grammar("S: a"), Error);
  CHECK_THROWS_AS(Grammar("S: 0 a"), Error);
  CHECK_THROWS_AS(Grammar("S: 1 {T}"), Error);
  CHECK_THROWS_AS(Grammar("S: 1 {S"), Error);
  CHECK_THROWS_AS(Grammar("S: 1 a\nS: 1 b"), Error);
  CHECK_THROWS_AS(Grammar("S: 1 a | 1 {S}{S}"), Error);  // as many new sentences as it ends: no finite mean
}

TEST_CASE("embedded grammar: no word stands in two lists, with or without an s")
{
  // So which list a word is from can be seen from the word, and the number of derivations of a sentence does not depend
  // on its words. The count, the tens and the ones stand at different places of a number; a number ends with a blank.
  const std::set<std::string> numbers{"Count", "Tens", "Ones"};
  std::map<std::string, std::string> list_of;
  for (const auto& rule : embedded_grammar().rules()) {
    if (!is_word_list(rule) || numbers.contains(rule.name)) continue;
    for (const auto& alternative : rule.alternatives) {
      REQUIRE(alternative.symbols.size() == 1);
      for (const std::string ending : {"", "s"}) {
        const std::string word = alternative.symbols[0].text + ending;
        INFO(word << " stands in " << rule.name << " and in " << list_of[word]);
        CHECK(list_of[word].empty());
        list_of[word] = rule.name;
      }
    }
  }
  CHECK(list_of.size() > 150);
}

TEST_CASE("embedded grammar: with one word a list, no two derivations give the same sentence")
{
  const Grammar grammar(rules_with_one_word_each());
  const std::set<int> nested{rule_called(grammar, "One"), rule_called(grammar, "Many")};
  const std::vector<Derivation> all = all_derivations(grammar, 0, nested, 2);
  std::set<std::string> sentences;
  for (const Derivation& derivation : all) sentences.insert(derivation.text);
  CHECK(all.size() > 100'000);
  CHECK(sentences.size() == all.size());

  // The noun groups three deep: what can be nested in a clause.
  for (const int group : nested) {
    const std::vector<Derivation> deep = all_derivations(grammar, group, nested, 4);
    std::set<std::string> texts;
    for (const Derivation& derivation : deep) texts.insert(derivation.text);
    CHECK(deep.size() > 1000);
    CHECK(texts.size() == deep.size());
  }
}

TEST_CASE("embedded grammar: a million bytes have one derivation a sentence and the entropy of the closed form")
{
  const Grammar& grammar = embedded_grammar();
  Parser parser(grammar);
  std::vector<std::pair<double, double>> sentences;  // nats, bytes
  double nats = 0, bytes = 0, several = 0;
  for (std::uint32_t number = 0; bytes < 1e6; ++number) {
    const std::string sentence = grammar.sentence(2, number);
    const Parser::Reading reading = parser.read(sentence.substr(0, sentence.size() - 1));
    several += reading.derivations != 1;
    sentences.emplace_back(-std::log(reading.probability), static_cast<double>(sentence.size()));
    nats += sentences.back().first;
    bytes += sentences.back().second;
  }
  CHECK(several == 0);

  // The ratio of two means over n independent sentences strays from the closed form by about
  // sqrt(sum (nats_i - ratio bytes_i)^2) / sum bytes_i; four times that happens once in 16,000 texts.
  const double ratio = nats / bytes;
  double squares = 0;
  for (const auto& [i, b] : sentences) squares += (i - ratio * b) * (i - ratio * b);
  const double deviation = std::sqrt(squares) / bytes;
  INFO("measured " << ratio << ", closed form " << grammar.entropy_per_byte() << ", deviation " << deviation);
  CHECK(deviation < 0.001);
  CHECK(std::abs(ratio - grammar.entropy_per_byte()) < 4 * deviation);
  CHECK(bytes / static_cast<double>(sentences.size()) == Approx(grammar.bytes_per_sentence()).epsilon(0.01));
}

TEST_CASE("embedded grammar: the floor is worth learning, far below ln 256 and far above 0")
{
  CHECK(embedded_grammar().entropy_per_byte() > 0.6);
  CHECK(embedded_grammar().entropy_per_byte() < 1.2);
}

TEST_CASE("text: the same seed gives the same bytes, a longer text begins with the shorter")
{
  const Grammar& grammar = embedded_grammar();
  const std::string text = grammar.text(1, 5000);
  CHECK(text.size() == 5000);
  CHECK(grammar.text(1, 9000).substr(0, 5000) == text);
  CHECK(grammar.text(2, 5000) != text);
  CHECK(text.starts_with(grammar.sentence(1, 0) + grammar.sentence(1, 1)));
  CHECK(grammar.text(1, 0).empty());
}

TEST_CASE("embedded_corpus: its bytes are the same on every machine")
{
  const Tokens corpus = embedded_corpus();
  CHECK(corpus.train->size() == 270'000);
  CHECK(corpus.validation->size() == 30'000);
  CHECK(corpus.vocabulary == 256);
  CHECK(corpus.floor == embedded_grammar().entropy_per_byte());
  CHECK(corpus.sha256 == "ae31629a560a157b353a607102179a7e79fb19c2683105768fc424f8773c994b");

  std::vector<Token> end(1000), begin(1000);
  corpus.train->read(269'000, end);
  corpus.validation->read(0, begin);
  end.insert(end.end(), begin.begin(), begin.end());
  CHECK(ByteTokenizer().decode(end) == embedded_grammar().text(1, 271'000).substr(269'000));
}
