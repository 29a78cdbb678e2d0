#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "common/base/error.hpp"
#include "data/pair_loader.hpp"
#include "gpt2/random.hpp"

using namespace rankwise;

namespace {

const ByteTokenizer bytes;

/// The sources of a text of bytes.
std::shared_ptr<const TokenSource> source_of(const std::string& text)
{
  return std::make_shared<MemoryTokens>(bytes.encode(text));
}

Tokens tokens_of(const std::string& train, const std::string& validation)
{
  return {.train = source_of(train),
          .validation = source_of(validation),
          .vocabulary = 256,
          .name = "talk.h5",
          .tokenizer = std::make_shared<ByteTokenizer>(),
          .sha256 = "",
          .floor = std::nullopt};
}

/// A text in which each line is another one, and its lines in order; line i is followed by line i + 1 of the same
/// conversation unless it ends one. Conversations have 2, 3 or 4 lines.
struct Talk {
  std::string text;
  std::vector<std::string> lines;
  std::vector<std::size_t> followed;  ///< lines that begin a pair
};

/// @param length  of line i, as a function of i; at least 4.
template <class Length>
Talk talk(int conversations, const Length& length)
{
  Talk talk;
  for (int c = 0; c < conversations; ++c) {
    for (int line = 0; line < 2 + c % 3; ++line) {
      const std::size_t number = talk.lines.size();
      if (line > 0) talk.followed.push_back(number - 1);
      std::string words = std::to_string(1000 + number);
      for (std::size_t i = words.size(); i < static_cast<std::size_t>(length(number)); ++i)
        words += static_cast<char>('a' + (i * number) % 26);
      talk.lines.push_back(words);
      talk.text += words + '\n';
    }
    talk.text += '\n';
  }
  return talk;
}

std::size_t between_4_and_20(std::size_t number)
{
  return 4 + number * 5 % 17;
}

/// Row @p b of a batch, before it was masked.
std::vector<Token> unmasked(const PairBatch& batch, std::int64_t b)
{
  std::vector<Token> row(static_cast<std::size_t>(batch.T));
  for (std::size_t t = 0; t < row.size(); ++t) {
    const std::size_t i = static_cast<std::size_t>(b * batch.T) + t;
    row[t] = batch.targets[i] >= 0 ? batch.targets[i] : batch.inputs[i];
  }
  return row;
}

/// The two lines of row @p b, which end at the special token after them.
std::vector<std::string> lines_of(const PairBatch& batch, std::int64_t b)
{
  std::vector<std::string> lines(1);
  for (const Token token : unmasked(batch, b)) {
    if (token < 256) lines.back() += static_cast<char>(token);
    if (token == pair_tokens(256).sep) lines.emplace_back();
  }
  lines.pop_back();
  return lines;
}

/// Number of the line, as it says itself.
std::size_t number_of(const std::string& line)
{
  return static_cast<std::size_t>(std::stoi(line.substr(0, 4)) - 1000);
}

/// [CLS] a [SEP] b [SEP] [PAD] ...
std::vector<Token> row_of(const std::string& a, const std::string& b, std::int64_t T)
{
  const PairTokens special = pair_tokens(256);
  std::vector<Token> row{special.cls};
  for (const std::string& line : {a, b}) {
    const std::vector<Token> tokens = bytes.encode(line);
    row.insert(row.end(), tokens.begin(), tokens.end());
    row.push_back(special.sep);
  }
  row.resize(static_cast<std::size_t>(T), special.pad);
  return row;
}

/// Whether rows [0, part.B) of @p part are rows first .. of @p whole, in all that a batch has.
bool is_part(const PairBatch& part, const PairBatch& whole, std::int64_t first)
{
  const auto same = [&](const std::vector<Token>& some, const std::vector<Token>& all, std::int64_t width) {
    return static_cast<std::int64_t>(some.size()) == part.B * width &&
           std::equal(some.begin(), some.end(), all.begin() + first * width);
  };
  return part.T == whole.T && part.pairs == part.B && part.padding == whole.padding &&
         same(part.inputs, whole.inputs, part.T) && same(part.segments, whole.segments, part.T) &&
         same(part.targets, whole.targets, part.T) && same(part.lengths, whole.lengths, 1) &&
         same(part.labels, whole.labels, 1);
}

/// Four standard deviations of a share of n events of probability p: further off only once in 16,000 tries.
double four_deviations(double n, double p)
{
  return 4 * std::sqrt(p * (1 - p) / n);
}

}  // namespace

TEST_CASE("pair_tokens: the special tokens are the four after the vocabulary")
{
  const PairTokens special = pair_tokens(256);
  CHECK(std::vector<Token>{special.pad, special.cls, special.sep, special.mask} ==
        std::vector<Token>{256, 257, 258, 259});
  CHECK(special_tokens == 4);
}

TEST_CASE("PairLoader: no purpose of gpt2/random.hpp has the bits of pairs")
{
  CHECK(static_cast<std::uint32_t>(Purpose::sampling) < pair_purpose);
  CHECK(pair_purpose < 8);
}

TEST_CASE(
    "PairLoader: a row is [CLS] a [SEP] b [SEP] and padding, b the next line or another one as the label says")
{
  constexpr std::int64_t T = 50, G = 30;
  const Talk text = talk(40, between_4_and_20);
  const PairLoader loader(source_of(text.text), bytes, {.T = T, .global_batch = G, .seed = 3});
  CHECK(loader.pairs() == static_cast<std::int64_t>(text.followed.size()));
  CHECK(loader.steps(1) == (loader.pairs() + G - 1) / G);
  PairBatch batch;
  for (std::int64_t step = 0; step < 10; ++step) {
    loader.load(step, {0, G}, batch);
    CHECK(batch.B == G);
    CHECK(batch.T == T);
    CHECK(batch.pairs == G);
    for (std::int64_t b = 0; b < G; ++b) {
      const std::vector<std::string> lines = lines_of(batch, b);
      REQUIRE(lines.size() == 2);
      const std::size_t first = number_of(lines[0]), second = number_of(lines[1]);
      CHECK(lines[0] == text.lines[first]);
      CHECK(lines[1] == text.lines[second]);
      CHECK(std::count(text.followed.begin(), text.followed.end(), first) == 1);
      CHECK(batch.labels[static_cast<std::size_t>(b)] == (second == first + 1 ? 0 : 1));
      CHECK(unmasked(batch, b) == row_of(lines[0], lines[1], T));
      const auto length = static_cast<Token>(3 + lines[0].size() + lines[1].size());
      CHECK(batch.lengths[static_cast<std::size_t>(b)] == length);
      for (Token t = 0; t < T; ++t) {
        const bool in_b = t >= static_cast<Token>(2 + lines[0].size()) && t < length;
        CHECK(batch.segments[static_cast<std::size_t>(b * T + t)] == (in_b ? 1 : 0));
      }
    }
  }
}

TEST_CASE("PairLoader: each epoch sees each pair once, in an order of its own, with choices of its own")
{
  constexpr std::int64_t T = 50, G = 6;
  const Talk text = talk(20, between_4_and_20);
  const auto n = static_cast<std::int64_t>(text.followed.size());
  const auto read = [&](std::uint32_t seed) {
    const PairLoader loader(source_of(text.text), bytes, {.T = T, .global_batch = G, .seed = seed});
    std::vector<PairBatch> batches(static_cast<std::size_t>(loader.steps(3)));
    for (std::size_t step = 0; step < batches.size(); ++step) {
      loader.load(static_cast<std::int64_t>(step), {0, G}, batches[step]);
    }
    return batches;
  };
  const std::vector<PairBatch> batches = read(1);
  std::vector<std::size_t> firsts;
  std::map<std::size_t, std::set<std::vector<Token>>> masks_of;
  for (const PairBatch& batch : batches) {
    for (std::int64_t b = 0; b < G; ++b) {
      firsts.push_back(number_of(lines_of(batch, b)[0]));
      const auto row = batch.inputs.begin() + b * T;
      masks_of[firsts.back()].insert({row, row + T});
    }
  }
  std::set<std::vector<std::size_t>> orders;
  for (auto epoch = firsts.begin(); firsts.end() - epoch >= n; epoch += n) {
    std::vector<std::size_t> order(epoch, epoch + n);
    orders.insert(order);
    std::sort(order.begin(), order.end());
    CHECK(order == text.followed);
  }
  CHECK(orders.size() == 3);
  for (const auto& [first, masks] : masks_of) CHECK(masks.size() >= 3);
  const std::vector<PairBatch> again = read(1), other = read(2);
  std::size_t same_as_other = 0;
  for (std::size_t step = 0; step < batches.size(); ++step) {
    CHECK(is_part(again[step], batches[step], 0));
    same_as_other += is_part(other[step], batches[step], 0);
  }
  CHECK(same_as_other == 0);
}

TEST_CASE("PairLoader: any cut of the global batch gives the same rows, and predicted_in() counts all its targets")
{
  constexpr std::int64_t T = 40, G = 12;
  const PairLoader loader(source_of(talk(30, between_4_and_20).text), bytes,
                          {.T = T, .global_batch = G, .seed = 9});
  PairBatch whole, part;
  for (std::int64_t step : {0, 1, 40}) {
    loader.load(step, {0, G}, whole);
    CHECK(loader.predicted_in(step) == whole.predicted);
    CHECK(std::count_if(whole.targets.begin(), whole.targets.end(), [](Token t) { return t >= 0; }) ==
          whole.predicted);
    for (std::int64_t size : {1, 2, 3, 4, 6}) {
      std::int64_t predicted = 0;
      for (std::int64_t first = 0; first < G; first += size) {
        loader.load(step, {first, size}, part);
        CHECK(is_part(part, whole, first));
        predicted += part.predicted;
      }
      CHECK(predicted == whole.predicted);
    }
  }
  loader.load(0, {4, 0}, part);
  CHECK(part.inputs.empty());
  CHECK(part.predicted == 0);
  CHECK(part.pairs == 0);
}

TEST_CASE("PairLoader: load_in_order reads the pairs in the order of the text, the same each time")
{
  constexpr std::int64_t T = 50;
  const Talk text = talk(30, between_4_and_20);
  const PairLoader loader(source_of(text.text), bytes, {.T = T, .global_batch = 4, .seed = 5});
  PairBatch whole, part;
  loader.load_in_order({0, loader.pairs()}, whole);
  for (std::int64_t b = 0; b < whole.B; ++b) {
    CHECK(number_of(lines_of(whole, b)[0]) == text.followed[static_cast<std::size_t>(b)]);
  }
  for (std::int64_t first = 0; first + 7 <= whole.B; first += 7) {
    loader.load_in_order({first, 7}, part);
    CHECK(is_part(part, whole, first));
  }
  // The order is that of the text, whatever the seed; the choices are not.
  const PairLoader other(source_of(text.text), bytes, {.T = T, .global_batch = 4, .seed = 6});
  other.load_in_order({0, loader.pairs()}, part);
  CHECK(part.labels != whole.labels);
  CHECK(part.targets != whole.targets);
  // Pairs 0 .. 3 are not masked as sequences 0 .. 3 of step 0.
  const auto chosen = [&](const PairBatch& batch) {
    std::vector<bool> places;
    for (std::int64_t i = 0; i < 4 * T; ++i) places.push_back(batch.targets[static_cast<std::size_t>(i)] >= 0);
    return places;
  };
  PairBatch step;
  const PairLoader one_length(source_of(talk(30, [](std::size_t) { return 20; }).text), bytes,
                              {.T = T, .global_batch = 4, .seed = 5});
  one_length.load(0, {0, 4}, step);
  one_length.load_in_order({0, 4}, part);
  CHECK(chosen(step) != chosen(part));
  loader.load_in_order({loader.pairs(), 0}, part);
  CHECK(part.B == 0);
  CHECK_THROWS_AS(loader.load_in_order({loader.pairs() - 1, 2}, part), Error);
}

TEST_CASE(
    "PairLoader: 15 % are chosen, of these 80 % masked, 10 % replaced and 10 % kept, and no special token ever")
{
  constexpr std::int64_t T = 64, G = 100;
  const PairTokens special = pair_tokens(256);
  const PairLoader loader(source_of(talk(300, between_4_and_20).text), bytes,
                          {.T = T, .global_batch = G, .seed = 4});
  double tokens = 0, expected = 0, chosen = 0, masked = 0, kept = 0, sum = 0;
  std::int64_t wrong = 0, without_target = 0;
  std::set<Token> drawn;  // random tokens
  PairBatch batch;
  for (std::int64_t step = 0; step < 100; ++step) {
    loader.load(step, {0, G}, batch);
    for (std::int64_t b = 0; b < G; ++b) {
      const double n = batch.lengths[static_cast<std::size_t>(b)] - 3;
      tokens += n;
      expected += 0.15 * n + std::pow(0.85, n);  // a row in which none would be chosen gets one
      std::int64_t targets = 0;
      for (std::int64_t t = 0; t < T; ++t) {
        const auto i = static_cast<std::size_t>(b * T + t);
        const Token input = batch.inputs[i], target = batch.targets[i];
        if (target < 0) {
          wrong += input == special.mask;
          continue;
        }
        ++targets;
        wrong += target >= 256 || (input >= 256 && input != special.mask);
        masked += input == special.mask;
        kept += input == target;
        if (input == special.mask || input == target) continue;
        sum += input;
        drawn.insert(input);
      }
      chosen += static_cast<double>(targets);
      without_target += targets == 0;
    }
  }
  CHECK(wrong == 0);
  CHECK(without_target == 0);
  // The rows that get their one target anyway vary less than others, so the deviation of 15 % is an upper bound.
  CHECK(tokens > 200'000);
  CHECK(std::abs(chosen - expected) / tokens < four_deviations(tokens, 0.15));
  CHECK(std::abs(masked / chosen - 0.8) < four_deviations(chosen, 0.8));
  // A random token is the same as the old one once in 256 times.
  const double keeps = 0.1 + 0.1 / 256, replaces = 0.1 - 0.1 / 256;
  const double replaced = chosen - masked - kept;
  CHECK(std::abs(kept / chosen - keeps) < four_deviations(chosen, keeps));
  CHECK(std::abs(replaced / chosen - replaces) < four_deviations(chosen, replaces));
  // One of the 256 is missing in 3400 draws once in 2,000 tries.
  CHECK(replaced > 3400);
  CHECK(drawn.size() == 256);
  // The mean of random tokens, whose standard deviation is 256 / sqrt(12); the old token is missing among them, which
  // changes the mean by less than 128 / 255.
  CHECK(std::abs(sum / replaced - 127.5) < 0.5 + 4 * 256 / std::sqrt(12 * replaced));
}

TEST_CASE("PairLoader: one token of each pair is chosen in any case, each with the same probability")
{
  constexpr std::int64_t T = 15, G = 100, steps = 120;
  const Talk text = talk(100, [](std::size_t) { return 6; });
  const PairLoader none(source_of(text.text), bytes, {.T = T, .global_batch = G, .seed = 8, .masked = 0});
  const PairLoader all(source_of(text.text), bytes, {.T = T, .global_batch = G, .seed = 8, .masked = 1});
  std::vector<double> times(T, 0.0);
  PairBatch batch;
  for (std::int64_t step = 0; step < steps; ++step) {
    none.load(step, {0, G}, batch);
    CHECK(batch.predicted == G);
    for (std::size_t i = 0; i < batch.targets.size(); ++i) times[i % T] += batch.targets[i] >= 0;
  }
  for (std::size_t t = 0; t < T; ++t) {
    const bool special = t == 0 || t == 7 || t == 14;
    CHECK(std::abs(times[t] / (G * steps) - (special ? 0.0 : 1.0 / 12)) <=
          (special ? 0.0 : four_deviations(G * steps, 1.0 / 12)));
  }
  all.load(0, {0, G}, batch);
  CHECK(batch.predicted == 12 * G);
}

TEST_CASE("PairLoader: half of the second lines are random ones, and each other line is drawn as often")
{
  // 6 pairs of 9 lines: a random b is one of 8, never the line that follows. So each of them has a share of 1/96.
  const Talk text = talk(3, between_4_and_20);
  REQUIRE(text.lines.size() == 9);
  REQUIRE(text.followed.size() == 6);
  constexpr std::int64_t G = 120, steps = 100;
  const PairLoader loader(source_of(text.text), bytes, {.T = 50, .global_batch = G, .seed = 6});
  std::map<std::pair<std::size_t, std::size_t>, double> times;
  double random = 0;
  PairBatch batch;
  for (std::int64_t step = 0; step < steps; ++step) {
    loader.load(step, {0, G}, batch);
    for (std::int64_t b = 0; b < G; ++b) {
      if (batch.labels[static_cast<std::size_t>(b)] == 0) continue;
      const std::vector<std::string> lines = lines_of(batch, b);
      ++times[{number_of(lines[0]), number_of(lines[1])}];
      ++random;
    }
  }
  constexpr double n = G * steps;
  CHECK(std::abs(random / n - 0.5) < four_deviations(n, 0.5));
  for (const std::size_t first : text.followed) {
    for (std::size_t second = 0; second < 9; ++second) {
      INFO(first << " and " << second);
      if (second == first + 1) {
        CHECK(times[{first, second}] == 0);
      } else {
        CHECK(std::abs(times[{first, second}] / n - 1.0 / 96) < four_deviations(n, 1.0 / 96));
      }
    }
  }
}

TEST_CASE("PairLoader: of a pair that is too long the longer line loses its last tokens")
{
  const Talk text = talk(30, [](std::size_t number) { return 4 + number * 13 % 60; });
  for (const std::int64_t T : {11, 12, 30, 47, 64}) {
    const PairLoader loader(source_of(text.text), bytes, {.T = T, .global_batch = 1, .seed = 2});
    PairBatch batch;
    loader.load_in_order({0, loader.pairs()}, batch);
    for (std::int64_t b = 0; b < batch.B; ++b) {
      const std::vector<std::string> lines = lines_of(batch, b);
      REQUIRE(lines.size() == 2);
      std::string first = text.lines[number_of(lines[0])], second = text.lines[number_of(lines[1])];
      while (static_cast<std::int64_t>(first.size() + second.size()) > T - 3) {
        if (first.size() > second.size()) {
          first.pop_back();
        } else {
          second.pop_back();
        }
      }
      CHECK(lines[0] == first);
      CHECK(lines[1] == second);
      CHECK(unmasked(batch, b) == row_of(first, second, T));
    }
  }
  // The shortest sequence has a token of each line.
  const PairLoader shortest(source_of(text.text), bytes, {.T = 5, .global_batch = 1});
  PairBatch batch;
  shortest.load(0, {0, 1}, batch);
  CHECK(lines_of(batch, 0) == std::vector<std::string>{"1", "1"});
  CHECK_THROWS_AS(PairLoader(source_of(text.text), bytes, {.T = 4}), Error);
}

TEST_CASE("pad: pairs that are not counted, of which attention sees one token")
{
  const PairLoader loader(source_of(talk(9, between_4_and_20).text), bytes, {.T = 30, .global_batch = 5});
  PairBatch whole, batch;
  loader.load(0, {0, 3}, whole);
  for (const std::int64_t B : {0, 2, 3}) {
    loader.load(0, {0, B}, batch);
    const std::int64_t predicted = batch.predicted;
    pad(batch, 5);
    CHECK(batch.B == 5);
    CHECK(batch.predicted == predicted);
    CHECK(batch.pairs == B);
    const auto rest = [&](const std::vector<Token>& row, std::int64_t width) {
      REQUIRE(static_cast<std::int64_t>(row.size()) == 5 * width);
      return std::vector<Token>(row.begin() + B * width, row.end());
    };
    const auto n = static_cast<std::size_t>(5 - B);
    CHECK(rest(batch.inputs, 30) == std::vector<Token>(n * 30, 256));
    CHECK(rest(batch.segments, 30) == std::vector<Token>(n * 30, 0));
    CHECK(rest(batch.targets, 30) == std::vector<Token>(n * 30, -1));
    CHECK(rest(batch.lengths, 1) == std::vector<Token>(n, 1));
    CHECK(rest(batch.labels, 1) == std::vector<Token>(n, -1));
    CHECK(std::equal(whole.inputs.begin(), whole.inputs.begin() + B * 30, batch.inputs.begin()));
  }
  CHECK_THROWS_AS(pad(batch, 4), Error);
}

TEST_CASE("PairLoader: places outside the data and data without a pair are errors")
{
  const std::string text = talk(9, between_4_and_20).text;
  const PairLoader loader(source_of(text), bytes, {.T = 30, .global_batch = 8});
  PairBatch batch;
  CHECK_THROWS_AS(loader.load(0, {6, 3}, batch), Error);
  CHECK_THROWS_AS(loader.load(0, {-1, 2}, batch), Error);
  CHECK_THROWS_AS(loader.load(-1, {0, 2}, batch), Error);
  CHECK_THROWS_AS(PairLoader(source_of("a\n\nb\n"), bytes, {.T = 30}), Error);
  CHECK_THROWS_AS(PairLoader(source_of(text), bytes, {.T = 30, .global_batch = 0}), Error);
  CHECK_THROWS_AS(PairLoader(source_of(text), bytes, {.T = 30, .masked = 1.5}), Error);
}

TEST_CASE("check_enough_pairs: refuses too few pairs, no pairs, and lines that are all too long")
{
  const std::string two = "one\ntwo\nthree\n", lines = "one\n\ntwo\n\nthree\n";
  CHECK_NOTHROW(check_enough_pairs(tokens_of(two, two), 9, 2));
  CHECK_THROWS_AS(check_enough_pairs(tokens_of(two, two), 9, 3), UserError);
  CHECK_THROWS_WITH(check_enough_pairs(tokens_of(two, two), 9, 3),
                    Catch::Contains("talk.h5 has 2 pairs to train on") && Catch::Contains("--global-batch=3") &&
                        Catch::Contains("to 2 or less"));
  CHECK_THROWS_AS(check_enough_pairs(tokens_of(lines, two), 9, 1), UserError);
  CHECK_THROWS_WITH(check_enough_pairs(tokens_of(lines, two), 9, 1),
                    Catch::Contains("no conversation in its training split") && Catch::Contains("its 3 lines") &&
                        Catch::Contains("an empty line between conversations"));
  CHECK_THROWS_WITH(check_enough_pairs(tokens_of(two, lines), 9, 1), Catch::Contains("its validation split"));
  CHECK_THROWS_WITH(check_enough_pairs(tokens_of(two, ""), 9, 1), Catch::Contains("its validation split"));
  CHECK_THROWS_AS(check_enough_pairs(tokens_of(two, two), 8, 1), UserError);
  CHECK_THROWS_WITH(check_enough_pairs(tokens_of(two, two), 8, 1),
                    Catch::Contains("--sequence=8 is too short") && Catch::Contains("--sequence=9 or more"));
}
