#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "data/dialogues.hpp"
#include "data/pair_loader.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

std::string text_of(const TokenSource& source)
{
  std::vector<Token> tokens(static_cast<std::size_t>(source.size()));
  source.read(0, tokens);
  return ByteTokenizer().decode(tokens);
}

std::vector<std::string> lines_of(const std::string& text)
{
  std::vector<std::string> lines;
  std::string line;
  for (const char c : text) {
    if (c != '\n') {
      line += c;
    } else if (!line.empty()) {
      lines.push_back(line);
      line.clear();
    }
  }
  return lines;
}

bool begins(const std::string& line, const std::vector<std::string>& words)
{
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) { return line.starts_with(word); });
}

bool is_question(const std::string& line)
{
  return line.back() == '?';
}

/// The kind of a line as a reader sees it: by its first word, without the grammar.
int kind_of(const std::string& line)
{
  const std::vector<std::vector<std::string>> questions{{"who "},      {"where "},       {"when "},
                                                        {"how many "}, {"what colour "}, {"why "}};
  const std::vector<std::vector<std::string>> answers{{"ana ", "ben ", "eva ", "tom "},
                                                      {"by ", "in ", "near "},
                                                      {"at "},
                                                      {"2", "3", "4", "5", "6", "7", "8", "9"},
                                                      {"it "},
                                                      {"because "}};
  const auto& kinds = is_question(line) ? questions : answers;
  int found = -1;
  for (int kind = 0; kind < 6; ++kind) {
    if (!begins(line, kinds[static_cast<std::size_t>(kind)])) continue;
    REQUIRE(found == -1);
    found = kind;
  }
  INFO(line);
  REQUIRE(found >= 0);
  return found;
}

/// All texts of a rule, with their probabilities.
std::map<std::string, double> all_texts(const Grammar& grammar, const std::vector<Grammar::Symbol>& symbols)
{
  std::map<std::string, double> texts{{"", 1.0}};
  for (const auto& symbol : symbols) {
    std::map<std::string, double> longer;
    for (const auto& [text, p] : texts) {
      if (symbol.rule < 0) {
        longer[text + symbol.text] += p;
        continue;
      }
      const Grammar::Rule& rule = grammar.rules()[static_cast<std::size_t>(symbol.rule)];
      for (const auto& alternative : rule.alternatives) {
        const double weight = static_cast<double>(alternative.weight) / static_cast<double>(rule.total);
        for (const auto& [piece, q] : all_texts(grammar, alternative.symbols))
          longer[text + piece] += p * weight * q;
      }
    }
    texts = std::move(longer);
  }
  return texts;
}

/// Question and answer of a kind: its symbols before and after the "/".
std::vector<std::vector<Grammar::Symbol>> halves_of(const Grammar::Alternative& kind)
{
  std::vector<std::vector<Grammar::Symbol>> halves(1);
  for (const auto& symbol : kind.symbols) {
    const std::size_t slash = symbol.text.find('/');
    halves.back().push_back({symbol.text.substr(0, slash), symbol.rule});
    if (slash != std::string::npos) halves.push_back({{symbol.text.substr(slash + 1), -1}});
  }
  REQUIRE(halves.size() == 2);
  return halves;
}

}  // namespace

TEST_CASE("embedded_dialogues: questions and their answers, at most 29 bytes a line, both splits whole")
{
  const Tokens tokens = embedded_dialogues();
  CHECK(tokens.vocabulary == 256);
  CHECK(!tokens.floor.has_value());
  CHECK(tokens.name == "the embedded dialogues");
  CHECK(tokens.sha256 == "93e962d537195b344ec87d5546502f13ba820e07897f77702fdda48088746df1");
  const std::int64_t train = tokens.train->size(), all = train + tokens.validation->size();
  CHECK((270'000 <= train && train < 270'062));
  CHECK((300'000 <= all && all < 300'062));
  for (const auto& source : {tokens.train, tokens.validation}) {
    const std::string text = text_of(*source);
    CHECK(text.ends_with(".\n\n"));
    const std::vector<std::string> lines = lines_of(text);
    std::string expected;
    std::size_t longest = 0;
    for (std::size_t i = 0; i + 1 < lines.size(); i += 2) {
      expected += lines[i] + '\n' + lines[i + 1] + "\n\n";
      CHECK(is_question(lines[i]));
      CHECK(!is_question(lines[i + 1]));
      CHECK(kind_of(lines[i]) == kind_of(lines[i + 1]));
      longest = std::max({longest, lines[i].size(), lines[i + 1].size()});
    }
    CHECK(expected == text);
    CHECK(longest <= 29);
    CHECK(longest >= 28);
  }
}

TEST_CASE("embedded_dialogues: each pair fits into 64 tokens, none is refused")
{
  const Tokens tokens = embedded_dialogues();
  CHECK_NOTHROW(check_enough_pairs(tokens, 64, 64));
  for (const auto& source : {tokens.train, tokens.validation}) {
    const LineIndex lines(source, *tokens.tokenizer);
    CHECK(lines.lines() == 2 * lines.pairs());
    std::size_t longest = 0;
    for (std::int64_t line = 0; line < lines.lines(); ++line) {
      longest = std::max(longest, lines.read(line, 100).size());
    }
    CHECK(3 + 2 * longest <= 64);
  }
}

TEST_CASE(
    "dialogue_grammar: each conversation has one derivation, and the closed form of its entropy is -sum p ln p")
{
  // A conversation is a question and an answer that share nothing but the kind, and "/" stands only between them. So
  // its entropy is that of the kind and, for each kind, those of both halves, as far as no text is derived twice: equal
  // texts are merged here, which would make the sum smaller than the closed form.
  const Grammar& grammar = dialogue_grammar();
  const Grammar::Rule& kinds = grammar.rules().front();
  double entropy = 0;
  std::set<std::string> seen;
  for (const auto& kind : kinds.alternatives) {
    const double p = static_cast<double>(kind.weight) / static_cast<double>(kinds.total);
    entropy -= p * std::log(p);
    for (const auto& half : halves_of(kind)) {
      for (const auto& [text, q] : all_texts(grammar, half)) {
        CHECK(seen.insert(text).second);  // no other kind has this line
        CHECK(text.find('/') == std::string::npos);
        CHECK(text.size() <= 29);
        entropy -= p * q * std::log(q);
      }
    }
  }
  CHECK(grammar.entropy_per_sentence() == Approx(entropy).epsilon(1e-12));
}

TEST_CASE("embedded_dialogues: a random line is consistent by chance as often as six kinds make it")
{
  const Tokens tokens = embedded_dialogues();
  // The figures of data/README.md: a random line is an answer of the question's kind with probability c.
  constexpr double c = 1.0 / 12, best_accuracy = 1 - c / 2;
  const double best_loss = (std::log1p(c) + c * std::log1p(1 / c)) / 2;
  const PairLoader loader(tokens.train, *tokens.tokenizer, {.T = 64, .global_batch = 1, .seed = 7, .masked = 0});
  // Pairs as the loader draws them, read back: masked tokens are in the targets.
  PairBatch batch;
  loader.load_in_order({0, loader.pairs()}, batch);
  double pairs = 0, random = 0, consistent = 0, right = 0, loss = 0, squares = 0;
  for (std::int64_t b = 0; b < batch.B; ++b) {
    std::vector<std::string> lines(2);
    for (std::int64_t t = 1; t < batch.lengths[static_cast<std::size_t>(b)]; ++t) {
      const auto i = static_cast<std::size_t>(b * batch.T + t);
      const Token token = batch.targets[i] >= 0 ? batch.targets[i] : batch.inputs[i];
      if (token < 256) lines[static_cast<std::size_t>(batch.segments[i])] += static_cast<char>(token);
    }
    const bool is_random = batch.labels[static_cast<std::size_t>(b)] == 1;
    const bool fits = !is_question(lines[1]) && kind_of(lines[0]) == kind_of(lines[1]);
    CHECK((is_random || fits));
    ++pairs;
    random += is_random;
    consistent += is_random && fits;
    right += fits != is_random;
    // Bayes' rule, with six kinds: a consistent b follows a with probability 1 / (1 + 1/12).
    const double nats = !fits ? 0.0 : is_random ? std::log(13.0) : std::log(13.0 / 12);
    loss += nats;
    squares += nats * nats;
  }
  // A count of n events of probability p strays by sqrt(n p (1-p)); four times that happens once in 16,000 texts.
  const auto deviation = [](double n, double p) { return 4 * std::sqrt(p * (1 - p) / n); };
  CHECK(pairs > 6000);
  CHECK(std::abs(random / pairs - 0.5) < deviation(pairs, 0.5));
  CHECK(std::abs(consistent / random - c) < deviation(random, c));
  CHECK(std::abs(right / pairs - best_accuracy) < deviation(pairs, best_accuracy));
  const double mean = loss / pairs;
  CHECK(std::abs(mean - best_loss) < 4 * std::sqrt((squares / pairs - mean * mean) / pairs));
}

TEST_CASE("embedded_dialogues: the text has the entropy per byte of the closed form")
{
  // Conversations are independent, so the probability of each is looked up half by half. The ratio of the two means
  // strays by about sqrt(sum (nats_i - ratio bytes_i)^2) / sum bytes_i.
  const Grammar& grammar = dialogue_grammar();
  const Grammar::Rule& kinds = grammar.rules().front();
  std::map<std::string, double> probability;
  for (const auto& kind : kinds.alternatives) {
    for (const auto& half : halves_of(kind)) {
      for (const auto& [text, p] : all_texts(grammar, half)) probability[text] = p;
    }
  }
  const std::vector<std::string> lines = lines_of(text_of(*embedded_dialogues().train));
  std::vector<std::pair<double, double>> conversations;
  double nats = 0, bytes = 0;
  for (std::size_t i = 0; i < lines.size(); i += 2) {
    const double p = probability.at(lines[i]) * probability.at(lines[i + 1]) / 6;
    conversations.emplace_back(-std::log(p), static_cast<double>(lines[i].size() + lines[i + 1].size() + 3));
    nats += conversations.back().first;
    bytes += conversations.back().second;
  }
  const double ratio = nats / bytes;
  double squares = 0;
  for (const auto& [i, b] : conversations) squares += (i - ratio * b) * (i - ratio * b);
  const double deviation = std::sqrt(squares) / bytes;
  // A conversation is a sentence of the grammar and the empty line after it.
  const double closed_form = grammar.entropy_per_sentence() / (grammar.bytes_per_sentence() + 1);
  INFO("measured " << ratio << ", closed form " << closed_form << ", deviation " << deviation);
  CHECK(deviation < 0.002);
  CHECK(std::abs(ratio - closed_form) < 4 * deviation);
}
