// gpt2/sampling.hpp: which token is drawn.

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "gpt2/sampling.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

const std::vector<float> logits{0.5f, 2.0f, -1.0f, 1.0f};

/// How often each token is drawn in @p draws draws.
std::array<double, 4> frequencies(const SamplingOptions& options, int draws)
{
  std::array<double, 4> counts{};
  for (int i = 0; i < draws; ++i) counts[static_cast<std::size_t>(pick_token(logits, options, i))] += 1.0 / draws;
  return counts;
}

}  // namespace

TEST_CASE("pick_token: temperature 0 takes the most likely, the first among equals")
{
  CHECK(pick_token(logits, {.temperature = 0}, 5) == 1);
  CHECK(pick_token(std::vector<float>{1, 3, 3}, {.temperature = 0}, 5) == 1);
}

TEST_CASE("pick_token: tokens come with the probabilities of soft-max")
{
  constexpr int draws = 20000;
  constexpr double tolerance =
      4 * 0.5 / 141.4;  // four standard deviations of a frequency over 20000 draws, at most
  for (const double temperature : {1.0, 0.5, 3.0}) {
    const auto found = frequencies({.temperature = temperature, .seed = 7}, draws);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit / temperature);
    for (std::size_t i = 0; i < logits.size(); ++i)
      CHECK(found[i] == Approx(std::exp(logits[i] / temperature) / sum).margin(tolerance));
  }
}

TEST_CASE("pick_token: only the k most likely are drawn")
{
  const auto found = frequencies({.top_k = 2, .seed = 3}, 2000);
  CHECK(found[0] == 0);
  CHECK(found[2] == 0);
  CHECK(found[1] > found[3]);
  CHECK(frequencies({.top_k = 1}, 50)[1] == Approx(1));
}

TEST_CASE("pick_token: top-p draws from the fewest tokens that reach it")
{
  const auto all = frequencies({.seed = 3}, 2000), nucleus = frequencies({.seed = 3, .top_p = 0.6}, 2000);
  const auto likeliest = std::max_element(all.begin(), all.end()) - all.begin();
  double kept = 0;
  for (std::size_t i = 0; i < all.size(); ++i) kept += nucleus[i] > 0 ? all[i] : 0;
  CHECK(nucleus[static_cast<std::size_t>(likeliest)] > 0);
  CHECK(kept > 0.55);
  CHECK(kept < 1);
  CHECK(frequencies({.top_p = 1e-9}, 50)[static_cast<std::size_t>(likeliest)] == Approx(1));  // at least one
  CHECK(frequencies({.seed = 3, .top_p = 1}, 2000) == all);
}

TEST_CASE("pick_token: the same seed and number give the same token, others give others")
{
  std::vector<Token> first, again, other;
  for (int i = 0; i < 100; ++i) {
    first.push_back(pick_token(logits, {.seed = 1}, i));
    again.push_back(pick_token(logits, {.seed = 1}, i));
    other.push_back(pick_token(logits, {.seed = 2}, i));
  }
  CHECK(first == again);
  CHECK(first != other);
}
