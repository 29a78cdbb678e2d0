#include <algorithm>
#include <numeric>

#include "common/base/error.hpp"
#include "data/loader.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

/// Tokens 0, 1, 2, ...: a token tells where it stands.
std::shared_ptr<const TokenSource> counting(std::int64_t n)
{
  std::vector<Token> tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), 0);
  return std::make_shared<MemoryTokens>(std::move(tokens));
}

Tokens text_of(std::shared_ptr<const TokenSource> train, std::shared_ptr<const TokenSource> validation)
{
  return {.train = std::move(train),
          .validation = std::move(validation),
          .vocabulary = 256,
          .name = "text.h5",
          .tokenizer = std::make_shared<ByteTokenizer>(),
          .sha256 = "",
          .floor = std::nullopt};
}

/// The windows of an epoch or more, read as sequences of steps 0 .. steps-1.
std::vector<std::int64_t> windows_read(const Loader& loader, std::int64_t steps, std::int64_t G, std::int64_t T)
{
  std::vector<std::int64_t> windows;
  Batch batch;
  for (std::int64_t step = 0; step < steps; ++step) {
    loader.load(step, {0, G}, batch);
    for (std::int64_t b = 0; b < G; ++b) windows.push_back(batch.inputs[static_cast<std::size_t>(b * T)] / T);
  }
  return windows;
}

}  // namespace

TEST_CASE("Loader: inputs are T tokens in a row, targets the tokens that follow")
{
  constexpr std::int64_t T = 8, G = 6;
  const Loader loader(counting(1000), {.T = T, .global_batch = G, .seed = 3});
  CHECK(loader.windows() == 124);  // 999 / 8
  Batch batch;
  loader.load(5, {0, G}, batch);
  CHECK(batch.B == G);
  CHECK(batch.T == T);
  CHECK(batch.valid_tokens == G * T);
  REQUIRE(batch.inputs.size() == G * T);
  REQUIRE(batch.targets.size() == G * T);
  for (std::int64_t b = 0; b < G; ++b) {
    const std::int64_t first = loader.window_of(5, b) * T;
    for (std::int64_t t = 0; t < T; ++t) {
      CHECK(batch.inputs[static_cast<std::size_t>(b * T + t)] == first + t);
      CHECK(batch.targets[static_cast<std::size_t>(b * T + t)] == first + t + 1);
    }
  }
}

TEST_CASE("Loader: each epoch sees each window once, in an order of its own, also where a step spans two epochs")
{
  constexpr std::int64_t T = 4, G = 6;
  const Loader loader(counting(20 * T + 1), {.T = T, .global_batch = G, .seed = 1});
  REQUIRE(loader.windows() == 20);
  CHECK(loader.steps(1) == 4);   // 24 sequences
  CHECK(loader.steps(3) == 10);  // 60 sequences, none over
  const std::vector<std::int64_t> read = windows_read(loader, 10, G, T);
  std::vector<std::vector<std::int64_t>> orders;
  for (auto epoch = read.begin(); epoch != read.end(); epoch += 20) {
    orders.emplace_back(epoch, epoch + 20);
    std::vector<std::int64_t> sorted = orders.back();
    std::sort(sorted.begin(), sorted.end());
    for (std::int64_t w = 0; w < 20; ++w) CHECK(sorted[static_cast<std::size_t>(w)] == w);
    CHECK(orders.back() != sorted);
  }
  CHECK(orders[0] != orders[1]);
  CHECK(orders[1] != orders[2]);
  const Loader other(counting(20 * T + 1), {.T = T, .global_batch = G, .seed = 2});
  CHECK(windows_read(other, 10, G, T) != read);
}

TEST_CASE("Loader: any cut of the global batch gives the same sequences")
{
  constexpr std::int64_t T = 5, G = 12;
  const Loader loader(counting(777), {.T = T, .global_batch = G, .seed = 9});
  Batch whole, part;
  for (std::int64_t step : {0, 1, 40}) {
    loader.load(step, {0, G}, whole);
    for (std::int64_t size : {1, 2, 3, 4, 6}) {
      for (std::int64_t first = 0; first < G; first += size) {
        loader.load(step, {first, size}, part);
        CHECK(std::equal(part.inputs.begin(), part.inputs.end(), whole.inputs.begin() + first * T));
        CHECK(std::equal(part.targets.begin(), part.targets.end(), whole.targets.begin() + first * T));
      }
    }
  }
  loader.load(0, {4, 0}, part);
  CHECK(part.inputs.empty());
  CHECK(part.valid_tokens == 0);
}

TEST_CASE("Loader: the uncounted prefix is -1 in the targets, and only there")
{
  constexpr std::int64_t T = 7, G = 3;
  const Loader all(counting(500), {.T = T, .global_batch = G, .seed = 2});
  Batch expected, batch;
  all.load(2, {0, G}, expected);
  for (std::int64_t K = 0; K <= T; ++K) {
    const Loader loader(counting(500), {.T = T, .global_batch = G, .seed = 2, .uncounted_prefix = K});
    loader.load(2, {0, G}, batch);
    CHECK(batch.inputs == expected.inputs);
    CHECK(batch.valid_tokens == G * (T - K));
    for (std::size_t i = 0; i < batch.targets.size(); ++i) {
      CHECK(batch.targets[i] == (static_cast<std::int64_t>(i) % T < K ? -1 : expected.targets[i]));
    }
  }
}

TEST_CASE("Loader: load_in_order reads the windows as the text has them")
{
  constexpr std::int64_t T = 10;
  const Loader loader(counting(10 * T + 1), {.T = T});
  Batch batch;
  loader.load_in_order({7, 3}, batch);
  REQUIRE(batch.inputs.size() == 3 * T);
  for (std::int64_t i = 0; i < 3 * T; ++i) {
    CHECK(batch.inputs[static_cast<std::size_t>(i)] == 7 * T + i);
    CHECK(batch.targets[static_cast<std::size_t>(i)] == 7 * T + i + 1);
  }
  CHECK_THROWS_AS(loader.load_in_order({8, 3}, batch), Error);
}

TEST_CASE("Loader: an empty range of windows gives an empty batch, which counts no targets when padded")
{
  const Loader loader(counting(101), {.T = 10});
  Batch batch;
  loader.load_in_order({3, 2}, batch);
  for (const std::int64_t first : {0, 9, 10, 25}) {
    loader.load_in_order({first, 0}, batch);
    CHECK(batch.B == 0);
    CHECK(batch.valid_tokens == 0);
    CHECK(batch.inputs.empty());
    pad(batch, 2);
    CHECK(batch.B == 2);
    CHECK(batch.valid_tokens == 0);
    CHECK(batch.inputs == std::vector<Token>(20, 0));
    CHECK(batch.targets == std::vector<Token>(20, -1));
  }
}

TEST_CASE("Loader: uses every window that has a last target, and no other")
{
  CHECK(Loader(counting(41), {.T = 10}).windows() == 4);
  CHECK(Loader(counting(40), {.T = 10}).windows() == 3);
  CHECK(Loader(counting(11), {.T = 10}).windows() == 1);
  CHECK_THROWS_AS(Loader(counting(10), {.T = 10}), Error);
}

TEST_CASE("Loader: sequences outside the global batch are an error")
{
  const Loader loader(counting(100), {.T = 4, .global_batch = 8});
  Batch batch;
  CHECK_THROWS_AS(loader.load(0, {6, 3}, batch), Error);
  CHECK_THROWS_AS(loader.load(0, {-1, 2}, batch), Error);
  CHECK_THROWS_AS(loader.load(-1, {0, 2}, batch), Error);
}

TEST_CASE("MemoryTokens: reading beyond the end is an error")
{
  std::vector<Token> out(5);
  counting(10)->read(5, out);
  CHECK(out.back() == 9);
  CHECK_THROWS_AS(counting(10)->read(6, out), Error);
  CHECK_THROWS_AS(counting(10)->read(-1, out), Error);
}

TEST_CASE("check_enough_tokens: G T + 1 tokens are enough, one less is refused with the options to change")
{
  CHECK_NOTHROW(check_enough_tokens(text_of(counting(16 * 64 + 1), counting(65)), 64, 16));
  const Tokens short_text = text_of(counting(16 * 64), counting(65));
  CHECK_THROWS_AS(check_enough_tokens(short_text, 64, 16), UserError);
  CHECK_THROWS_WITH(check_enough_tokens(short_text, 64, 16),
                    Contains("text.h5") && Contains("1,024") && Contains("1,025") &&
                        Contains("--global-batch=16") && Contains("--sequence=64") &&
                        Contains("--global-batch to 15 or less") && Contains("--data"));
  const Tokens no_window = text_of(counting(64), counting(65));
  CHECK_THROWS_WITH(check_enough_tokens(no_window, 64, 16), Contains("Lower --sequence") && !Contains("or less"));
  CHECK_THROWS_WITH(check_enough_tokens(text_of(counting(0), counting(0)), 64, 16), Contains("has 0 tokens"));
  const Tokens short_validation = text_of(counting(16 * 64 + 1), counting(64));
  CHECK_THROWS_WITH(check_enough_tokens(short_validation, 64, 16),
                    Contains("64 tokens for validation") && Contains("65"));
}

TEST_CASE("check_vocabulary: names the first token that the model does not know")
{
  std::vector<Token> tokens(200'000, 7);
  CHECK_NOTHROW(check_vocabulary(text_of(std::make_shared<MemoryTokens>(tokens), counting(8)), 8));
  tokens[123'456] = 8;
  tokens[150'000] = 9;
  const Tokens text = text_of(std::make_shared<MemoryTokens>(tokens), counting(9));
  CHECK_NOTHROW(check_vocabulary(text, 256));
  CHECK_NOTHROW(check_vocabulary(text, 10));
  CHECK_THROWS_AS(check_vocabulary(text, 8), UserError);
  CHECK_THROWS_WITH(check_vocabulary(text, 8),
                    Contains("token 8 at position 123,456 of its training split") && Contains("--vocabulary=256"));
  const Tokens in_validation = text_of(counting(8), counting(9));
  CHECK_THROWS_WITH(check_vocabulary(in_validation, 8), Contains("position 8 of its validation split"));
}

TEST_CASE("first_token_beyond: a negative token is outside too")
{
  const MemoryTokens tokens({3, 4, -1, 9});
  const auto found = first_token_beyond(tokens, 5);
  REQUIRE(found.has_value());
  CHECK(found->position == 2);
  CHECK(found->token == -1);
  CHECK(!first_token_beyond(MemoryTokens({3, 4}), 5).has_value());
}
