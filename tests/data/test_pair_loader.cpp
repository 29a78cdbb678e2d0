#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/base/error.hpp"
#include "data/pair_loader.hpp"
#include "gpt2/random.hpp"
#include "tests/catch.hpp"
#include "tests/data/talk.hpp"

using namespace rankwise;

namespace {

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
  CHECK_THROWS_WITH(check_enough_pairs(tokens_of(two, two), 9, 3), Contains("talk.h5 has 2 pairs to train on") &&
                                                                       Contains("--global-batch=3") &&
                                                                       Contains("to 2 or less"));
  CHECK_THROWS_AS(check_enough_pairs(tokens_of(lines, two), 9, 1), UserError);
  CHECK_THROWS_WITH(check_enough_pairs(tokens_of(lines, two), 9, 1),
                    Contains("no conversation in its training split") && Contains("its 3 lines") &&
                        Contains("an empty line between conversations"));
  CHECK_THROWS_WITH(check_enough_pairs(tokens_of(two, lines), 9, 1), Contains("its validation split"));
  CHECK_THROWS_WITH(check_enough_pairs(tokens_of(two, ""), 9, 1), Contains("its validation split"));
  CHECK_THROWS_AS(check_enough_pairs(tokens_of(two, two), 8, 1), UserError);
  CHECK_THROWS_WITH(check_enough_pairs(tokens_of(two, two), 8, 1),
                    Contains("--sequence=8 is too short") && Contains("--sequence=9 or more"));
}
