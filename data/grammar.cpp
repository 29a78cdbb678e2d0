#include "data/grammar.hpp"

#include <charconv>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/philox.hpp"
#include "common/base/text.hpp"

namespace rankwise {

namespace {

// Small animals. A reader of 64 bytes can learn that the verb agrees with its subject in number, also across a
// clause that stands between them; that questions take the bare verb; that a sentence which opens with a name
// closes with it. `One` and `Many` are a noun group in the singular and in the plural; both verbs are written as in
// "they run".
constexpr std::string_view rules_of_embedded = R"(
Line:     12 {Clause}. | 4 {Question}?
        | 1 ana: {Clause} :ana | 1 ben: {Clause} :ben | 1 eva: {Clause} :eva | 1 tom: {Clause} :tom
Clause:   4 {One} {Act}s | 2 {One} {Act}s {Where} | 4 {One} {Link}s {Thing}
        | 4 {Many} {Act} | 2 {Many} {Act} {Where} | 4 {Many} {Link} {Thing}
Question: 2 does {One} {Act} | 1 does {One} {Link} {Thing}
        | 2 do {Many} {Act} | 1 do {Many} {Link} {Thing}
Thing:    1 {One} | 1 {Many}
One:      12 {The} {Noun} | 6 {The} {Kind} {Noun}
        | 1 {The} {Noun} that {Link}s {Thing} | 1 {The} {Noun} that {Many} {Link}
Many:     12 {All} {Noun}s | 6 {All} {Kind} {Noun}s
        | 1 {All} {Noun}s that {Link} {Thing} | 1 {All} {Noun}s that {One} {Link}s
The:      3 the | 2 my | 1 her | 1 our | 1 one
All:      3 the | 2 my | 1 all | 1 few | 3 {Count} | 2 {Tens}{Ones}
Count:    1 2 | 1 3 | 1 4 | 1 5 | 1 6 | 1 7 | 1 8 | 1 9
Tens:     1 1 | 1 2 | 1 3 | 1 4 | 1 5 | 1 6 | 1 7 | 1 8 | 1 9
Ones:     1 0 | 1 1 | 1 2 | 1 3 | 1 4 | 1 5 | 1 6 | 1 7 | 1 8 | 1 9
Where:    4 at {Count} | 2 by {The} {Place} | 1 near {The} {Place} | 1 in {The} {Place}
Noun:     2 ant | 2 bat | 2 bee | 2 cat | 2 cow | 2 dog | 2 eel | 2 elk | 2 emu | 2 hen | 2 owl | 2 pig | 2 pup
        | 2 ram | 2 rat | 2 yak | 1 bear | 1 crab | 1 crow | 1 dove | 1 duck | 1 frog | 1 goat | 1 gull | 1 hare
        | 1 lamb | 1 lion | 1 mole | 1 newt | 1 swan | 1 toad | 1 wren
Kind:     2 big | 2 odd | 2 old | 2 red | 2 sad | 2 shy | 2 sly | 2 wet | 1 bold | 1 calm | 1 cold | 1 glad
        | 1 grey | 1 lazy | 1 pale | 1 slim | 1 tame | 1 tiny | 1 wild | 1 young
Act:      2 dig | 2 eat | 2 hum | 2 nap | 2 run | 2 sit | 1 hide | 1 jump | 1 leap | 1 play | 1 rest | 1 roam
        | 1 sing | 1 swim | 1 wait | 1 yawn
Link:     3 see | 2 hear | 2 like | 2 meet | 1 fear | 1 feed | 1 find | 1 help | 1 know | 1 lead | 1 mind | 1 trust
Place:    1 barn | 1 gate | 1 hill | 1 lake | 1 mill | 1 oak | 1 pond | 1 road | 1 shed | 1 tree | 1 wall | 1 well
)";

// ---- Reading the rules -----------------------------------------------------------------------------------------

/// Splits @p text at each @p mark.
std::vector<std::string_view> split(std::string_view text, std::string_view mark)
{
  std::vector<std::string_view> pieces;
  for (std::size_t at = text.find(mark); at != std::string_view::npos; at = text.find(mark)) {
    pieces.push_back(text.substr(0, at));
    text.remove_prefix(at + mark.size());
  }
  pieces.push_back(text);
  return pieces;
}

/// Splits the text into rules, each with the lines that continue it.
std::vector<std::string_view> split_rules(std::string_view rules)
{
  std::vector<std::string_view> pieces;
  for (const std::string_view line : split(rules, "\n")) {
    if (trimmed(line).empty()) continue;
    if (line.front() != ' ') {
      pieces.push_back(line);
    } else {
      check(!pieces.empty(), "the first line of a grammar cannot continue a rule");
      const char* const begin = pieces.back().data();
      pieces.back() = {begin, static_cast<std::size_t>(line.data() + line.size() - begin)};
    }
  }
  return pieces;
}

int rule_number(const std::vector<Grammar::Rule>& rules, std::string_view name)
{
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (rules[i].name == name) return static_cast<int>(i);
  }
  throw Error(fmt::format("the grammar has no rule called {}", name));
}

/// Reads "WEIGHT text with {Names}".
Grammar::Alternative read_alternative(std::string_view text, const std::vector<Grammar::Rule>& rules)
{
  Grammar::Alternative alternative;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), alternative.weight);
  check(error == std::errc() && alternative.weight >= 1 && alternative.weight <= 1'000'000,
        fmt::format("the alternative \"{}\" does not begin with a weight between 1 and 1,000,000", text));
  text = trimmed(text.substr(static_cast<std::size_t>(end - text.data())));
  while (!text.empty()) {
    const std::size_t stop = text.front() == '{' ? text.find('}') : std::min(text.find('{'), text.size());
    check(stop != std::string_view::npos, fmt::format("the name in \"{}\" does not end", text));
    if (text.front() == '{') {
      alternative.symbols.push_back({"", rule_number(rules, text.substr(1, stop - 1))});
      text.remove_prefix(stop + 1);
    } else {
      alternative.symbols.push_back({std::string(text.substr(0, stop)), -1});
      text.remove_prefix(stop);
    }
  }
  return alternative;
}

// ---- What follows from the weights -----------------------------------------------------------------------------

/// Entropy of one choice, in nats.
double entropy(const Grammar::Rule& rule)
{
  double sum = 0;
  for (const auto& alternative : rule.alternatives) {
    const double p = static_cast<double>(alternative.weight) / static_cast<double>(rule.total);
    sum -= p * std::log(p);
  }
  return sum;
}

/// Expected number of literal bytes of one use of @p rule, without the rules inside it.
double own_bytes(const Grammar::Rule& rule)
{
  double sum = 0;
  for (const auto& alternative : rule.alternatives) {
    for (const auto& symbol : alternative.symbols) {
      sum += static_cast<double>(alternative.weight) * static_cast<double>(symbol.text.size());
    }
  }
  return sum / static_cast<double>(rule.total);
}

/// Expected uses u of each rule in a sentence: u = e_0 + u M, where M[i][j] is the expected number of times that
/// rule i names rule j. It is the series e_0 (1 + M + M^2 + ...),
/// whose k-th term counts the uses at depth k of the derivation.
std::vector<double> count_uses(const std::vector<Grammar::Rule>& rules)
{
  std::vector<double> uses(rules.size(), 0.0), level(rules.size(), 0.0);
  level[0] = 1;
  for (int depth = 0; depth < 10'000; ++depth) {
    std::vector<double> next(rules.size(), 0.0);
    double left = 0;
    for (std::size_t i = 0; i < rules.size(); ++i) {
      uses[i] += level[i];
      left += level[i];
      for (const auto& alternative : rules[i].alternatives) {
        const double p = static_cast<double>(alternative.weight) / static_cast<double>(rules[i].total);
        for (const auto& symbol : alternative.symbols) {
          if (symbol.rule >= 0) next[static_cast<std::size_t>(symbol.rule)] += p * level[i];
        }
      }
    }
    if (left < 1e-30) return uses;  // far below what a double can add to the sum
    level = std::move(next);
  }
  throw Error("the sentences of this grammar have no finite expected length");
}

/// The random choices of one sentence, in the order of its text.
class Choices {
 public:
  Choices(std::uint32_t seed, std::uint32_t sentence) : seed_(seed), sentence_(sentence) {}

  /// A uniformly distributed number in [0, total): words in the
  /// last, incomplete run of total numbers are drawn again.
  std::int64_t below(std::int64_t total)
  {
    constexpr std::int64_t words = std::int64_t{1} << 32;
    for (;;) {
      const std::int64_t word = philox({sentence_, drawn_++, 0, 0}, {seed_, 0})[0];
      if (word < words - words % total) return word % total;
    }
  }

 private:
  std::uint32_t seed_, sentence_, drawn_ = 0;
};

void expand(const std::vector<Grammar::Rule>& rules, int number, Choices& choices, std::string& out)
{
  const Grammar::Rule& rule = rules[static_cast<std::size_t>(number)];
  std::int64_t chosen = choices.below(rule.total);
  auto alternative = rule.alternatives.begin();
  for (; chosen >= alternative->weight; ++alternative) chosen -= alternative->weight;
  for (const auto& symbol : alternative->symbols) {
    if (symbol.rule >= 0) {
      expand(rules, symbol.rule, choices, out);
    } else {
      out += symbol.text;
    }
  }
}

}  // namespace

// ---- Grammar ---------------------------------------------------------------------------------------------------

Grammar::Grammar(std::string_view rules)
{
  const std::vector<std::string_view> pieces = split_rules(rules);
  check(!pieces.empty(), "a grammar without a rule");
  for (const std::string_view piece : pieces) {
    const std::size_t colon = piece.find(':');
    check(colon != std::string_view::npos, fmt::format("the rule \"{}\" has no name", piece));
    rules_.push_back({.name = std::string(piece.substr(0, colon)), .total = 0, .alternatives = {}});
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    Rule& rule = rules_[i];
    check(rule_number(rules_, rule.name) == static_cast<int>(i), fmt::format("two rules are called {}", rule.name));
    for (const std::string_view text : split(pieces[i].substr(rule.name.size() + 1), "| ")) {
      rule.alternatives.push_back(read_alternative(trimmed(text), rules_));
      rule.total += rule.alternatives.back().weight;
    }
  }
  uses_ = count_uses(rules_);
}

double Grammar::entropy_per_sentence() const
{
  double sum = 0;
  for (std::size_t i = 0; i < rules_.size(); ++i) sum += uses_[i] * entropy(rules_[i]);
  return sum;
}

double Grammar::bytes_per_sentence() const
{
  double sum = 1;  // the newline
  for (std::size_t i = 0; i < rules_.size(); ++i) sum += uses_[i] * own_bytes(rules_[i]);
  return sum;
}

std::string Grammar::sentence(std::uint32_t seed, std::uint32_t number) const
{
  Choices choices(seed, number);
  std::string out;
  expand(rules_, 0, choices, out);
  return out + '\n';
}

std::string Grammar::text(std::uint32_t seed, std::size_t bytes) const
{
  std::string out;
  for (std::uint32_t number = 0; out.size() < bytes; ++number) out += sentence(seed, number);
  out.resize(bytes);
  return out;
}

const Grammar& embedded_grammar()
{
  static const Grammar grammar(rules_of_embedded);
  return grammar;
}

}  // namespace rankwise
