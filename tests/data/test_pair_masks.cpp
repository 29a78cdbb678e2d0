#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "data/pair_loader.hpp"
#include "tests/catch.hpp"
#include "tests/data/talk.hpp"

using namespace rankwise;

namespace {

/// Four standard deviations of a share of n events of probability p: further off only once in 16,000 tries.
double four_deviations(double n, double p)
{
  return 4 * std::sqrt(p * (1 - p) / n);
}

}  // namespace

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
