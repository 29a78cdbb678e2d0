#include "gpt2/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "gpt2/random.hpp"

namespace rankwise {

Token pick_token(std::span<const float> logits, const SamplingOptions& options, std::int64_t number)
{
  std::vector<Token> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](Token a, Token b) {
    const float left = logits[static_cast<std::size_t>(a)], right = logits[static_cast<std::size_t>(b)];
    return left > right || (left == right && a < b);
  };
  std::sort(order.begin(), order.end(), likelier);
  if (options.temperature == 0) return order.front();
  if (options.top_k > 0 && options.top_k < static_cast<std::int64_t>(order.size()))
    order.resize(static_cast<std::size_t>(options.top_k));

  const double maximum = logits[static_cast<std::size_t>(order.front())];
  const auto weight = [&](Token t) {
    return std::exp((logits[static_cast<std::size_t>(t)] - maximum) / options.temperature);
  };
  double sum = 0;
  for (const Token t : order) sum += weight(t);
  if (options.top_p < 1) {
    const double nucleus = options.top_p * sum;
    std::size_t kept = 0;
    for (sum = 0; kept < order.size() && sum < nucleus; ++kept) sum += weight(order[kept]);
    order.resize(kept);
  }
  double left = sum * uniform(random_words(options.seed, Purpose::sampling, {.token = number})[0]);
  for (const Token t : order) {
    left -= weight(t);
    if (left < 0) return t;
  }
  return order.back();
}

}  // namespace rankwise
