// gpt2/training_options.hpp and arithmetic.hpp: defaults that depend on other options, and refused combinations.

#include <bit>

#include "common/base/text.hpp"
#include "gpt2/training_options.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

TEST_CASE("TrainingOptions: values of 0 follow from the model and the rank's sequences")
{
  TrainingOptions options;
  CHECK(options.config().parameters() == 220544);
  CHECK(options.batch(4).micro_batch == 4);
  CHECK(options.batch(4).sequence == 64);
  options.micro_batch = 2;
  options.sequence = 32;
  options.layers = 7;
  CHECK(options.batch(4).micro_batch == 2);
  CHECK(options.activation_shape(4).rows() == 64);
  CHECK(options.config().layers == 7);
}

TEST_CASE("TrainingOptions: steps, epochs, or a default")
{
  const auto source = std::make_shared<MemoryTokens>(std::vector<Token>(321, 1));  // 5 windows of 64
  TrainingOptions options;
  options.global_batch = 2;
  const Loader loader(source, options.loader_options());
  CHECK(options.schedule_over(loader.windows()).steps == 100);
  options.steps = 7;
  CHECK(options.schedule_over(loader.windows()).steps == 7);
  options.steps = 0;
  options.epochs = 3;
  CHECK(options.schedule_over(loader.windows()).steps == 8);
}

TEST_CASE("TrainingOptions: targets inside a prefix are not counted")
{
  TrainingOptions options;
  CHECK(options.loader_options().uncounted_prefix == 0);
  options.mask = "prefix:9";
  CHECK(options.loader_options().uncounted_prefix == 8);
}

TEST_CASE("check_options: shares of the global batch are what a micro-batch divides")
{
  TrainingOptions options;
  options.global_batch = 16;
  options.micro_batch = 4;
  CHECK_NOTHROW(check_options(options, {.dp = 4}));
  CHECK_THROWS_WITH(check_options(options, {.dp = 8}), Contains("--micro-batch=4") && Contains("2 sequences"));
}

TEST_CASE("check_options: incompatible precisions are refused")
{
  const auto says = [](const TrainingOptions& options, const std::string& first, const std::string& second) {
    CHECK_THROWS_WITH(check_options(options, {.dp = 2}), Contains(first) && Contains(second));
  };
  TrainingOptions o;
  o.gradients = DType::bf16;
  says(o, "--gradients=bf16", "--precision=f32");
  o.precision = DType::bf16;
  CHECK_NOTHROW(check_options(o, {.dp = 2}));
  o.micro_batch = 4;
  says(o, "--gradients=bf16", "2 micro-batches");
  o.micro_batch = 8;
  CHECK_NOTHROW(check_options(o, {.dp = 2}));
  o.arithmetic = Sums::exact;
  says(o, "--gradients=bf16", "--arithmetic=exact");
  o.gradients = DType::f32;
  CHECK_NOTHROW(check_options(o, {.dp = 2}));

  TrainingOptions fast;
  fast.tf32 = true;
  says(fast, "--tf32", "--device=cpu");
  fast.device = DeviceKind::cuda;
  CHECK_NOTHROW(check_options(fast, {.dp = 2}));
  fast.precision = DType::bf16;
  says(fast, "--tf32", "--precision=bf16");
  fast.precision = DType::f32;
  fast.arithmetic = Sums::exact;
  says(fast, "--tf32", "--arithmetic=exact");
}

TEST_CASE("check_options: a run is compared only where a single device could train in exact arithmetic")
{
  TrainingOptions options;
  options.compare = 10;
  options.micro_batch = 4;
  CHECK_NOTHROW(check_options(options, {.dp = 4}));
  options.global_batch = 12;
  CHECK_NOTHROW(check_options(options, {.dp = 3}));
  options.sequence = 20;
  CHECK_THROWS_WITH(check_options(options, {.dp = 3}), Contains("--compare=10") && Contains("--sequence=20"));
  options.compare = 0;
  CHECK_NOTHROW(check_options(options, {.dp = 3}));
  options.compare = -1;
  CHECK_THROWS_WITH(check_options(options, {.dp = 3}), Contains("--compare=-1"));
}

TEST_CASE(
    "check_fits_data: a sample has only tokens that the tokenizer can write, and begins with one that the model "
    "knows")
{
  Tokens tokens;
  tokens.train = std::make_shared<MemoryTokens>(std::vector<Token>(1100, 1));
  tokens.name = "the text";
  tokens.tokenizer = std::make_shared<ByteTokenizer>();
  TrainingOptions options;
  options.vocabulary = 300;
  CHECK_NOTHROW(check_fits_data(options, tokens));
  options.sample = 10;
  CHECK_THROWS_AS(check_fits_data(options, tokens), UserError);
  CHECK_THROWS_WITH(check_fits_data(options, tokens), Contains("--sample=10 may draw tokens up to 299") &&
                                                          Contains("\"byte\" of the text has text for 0 to 255") &&
                                                          Contains("--vocabulary=256"));
  options.vocabulary = 256;
  CHECK_NOTHROW(check_fits_data(options, tokens));
  options.vocabulary = 11;
  CHECK_NOTHROW(check_fits_data(options, tokens));
  options.vocabulary = 10;
  CHECK_THROWS_WITH(check_fits_data(options, tokens),
                    Contains("begins or ends with the token 10") && Contains("--vocabulary=11"));
}

TEST_CASE("check_exact: degrees, batches and sizes that do not fit the tree are refused by name")
{
  const ModelConfig nano = preset("nano");
  const BatchShape batch{.global_batch = 16, .micro_batch = 4, .sequence = 64};
  CHECK_NOTHROW(check_exact({.dp = 4, .tp = 4, .pp = 2}, nano, batch));
  CHECK_THROWS_WITH(check_exact({.dp = 3}, nano, batch), Contains("data-parallel ranks: 3") && Contains("2 or 4"));
  CHECK_THROWS_WITH(check_exact({.tp = 6}, nano, batch), Contains("--tp=6") && Contains("4 or 8"));
  CHECK_THROWS_WITH(check_exact({.pp = 5}, nano, batch), Contains("pipeline-parallel ranks: 5"));
  CHECK_THROWS_WITH(check_exact({}, nano, {12, 4, 64}), Contains("--global-batch=12") && Contains("8 or 16"));
  CHECK_THROWS_WITH(check_exact({}, nano, {24, 3, 64}), Contains("power of two"));
  CHECK_NOTHROW(check_exact({.dp = 3, .tp = 2, .pp = 5, .uneven = true}, nano, {15, 1, 64}));
  CHECK_THROWS_WITH(check_exact({.tp = 6, .uneven = true}, nano, batch), Contains("--tp=6") && Contains("4 or 8"));
  CHECK_THROWS_WITH(check_exact({.uneven = true}, nano, {24, 3, 64}), Contains("--micro-batch=3"));
  CHECK_THROWS_WITH(check_exact({}, nano, {16, 4, 63}), Contains("--sequence=63") && Contains("64"));
}

TEST_CASE("cut_batch: in exact arithmetic no micro-batch crosses the end of an aligned run of any replica")
{
  TrainingOptions options;
  for (options.global_batch = 1; options.global_batch <= 40; ++options.global_batch)
    for (const std::int64_t asked : {0, 1, 2, 4, 8})
      for (std::int64_t N = 1; N <= options.global_batch; ++N) {
        INFO("G = " << options.global_batch << ", N = " << N << ", --micro-batch=" << asked);
        options.micro_batch = asked;
        options.arithmetic = Sums::exact;
        const std::int64_t B = options.cut_batch(N).micro_batch;
        REQUIRE(std::has_single_bit(static_cast<std::uint64_t>(B)));
        if (options.micro_batch > 0) REQUIRE(B <= options.micro_batch);
        bool twice = true;  // whether micro-batches of twice as many would do
        for (std::int64_t r = 0; r < N; ++r) {
          const Range share = Partition(options.global_batch, N).shard(r);
          REQUIRE((share.first % B == 0 && share.count % B == 0));
          twice = twice && share.first % (2 * B) == 0 && share.count % (2 * B) == 0;
        }
        REQUIRE((!twice || B == options.micro_batch));
        options.arithmetic = Sums::fast;
        REQUIRE(options.cut_batch(N).micro_batch == options.batch(options.global_batch / N).micro_batch);
      }
}

TEST_CASE("Arithmetic: gradient_bytes is what the ledger sees, for any number of micro-batches")
{
  const auto device = make_cpu_device();
  const auto stream = device->make_stream();
  const GradientLayout layout{.elements = 100, .tied = {0, 30}};
  for (const Sums sums : {Sums::fast, Sums::exact})
    for (const Range micro_batches :
         {Range{0, 1}, {0, 2}, {0, 4}, {0, 16}, {0, 6}, {0, 7}, {3, 4}, {5, 11}, {7, 2}}) {
      INFO("micro-batches [" << micro_batches.first << ", " << micro_batches.end() << ")");
      const Arithmetic arithmetic(sums);
      MemoryLedger ledger;
      const auto kernels = arithmetic.make_kernels({device.get(), &ledger}, *stream);
      const auto sum = arithmetic.make_gradient_sum(kernels, *stream, {device.get(), &ledger}, layout);
      for (std::int64_t i = micro_batches.first; i < micro_batches.end(); ++i) {
        sum->begin({i, 1});
        sum->end({i, 1});
      }
      sum->sums();
      sum->total();
      CHECK(ledger.peak(Tier::device) == arithmetic.gradient_bytes(layout, micro_batches));
    }
}

TEST_CASE("suggest_options: names the largest micro-batch that fits, or what needs least")
{
  TrainingOptions options;
  const ModelConfig config = options.config();
  const GradientLayout layout = gradient_layout(ParameterTable(config), DType::f32);
  const auto plan = [&](const TrainingOptions& o) {
    CategoryBytes bytes = Arithmetic(o.arithmetic).gradient_bytes(layout, 16 / o.activation_shape(16).B);
    bytes[Category::optimizer] = 1'000'000;  // does not depend on the micro-batch
    bytes[Category::activations] = activation_bytes(config, o.activation_shape(16));
    bytes[Category::workspace] = workspace_bytes(config, o.activation_shape(16));
    return bytes;
  };
  const auto needs = [&](std::int64_t B, bool recompute) {
    TrainingOptions o = options;
    o.micro_batch = B;
    o.recompute_blocks = recompute;
    return plan(o).total();
  };
  const auto answer = [&](std::int64_t capacity) {
    return suggest_options(options, 16, layout, plan(options), capacity);
  };
  for (const Sums sums : {Sums::fast, Sums::exact}) {
    options.arithmetic = sums;
    CHECK(answer(needs(16, true)) == "--micro-batch=16 --recompute=block would fit.");
    CHECK(answer(needs(8, false)) == (needs(8, false) < needs(16, true)
                                          ? "--micro-batch=8 would fit."
                                          : "--micro-batch=16 --recompute=block would fit."));
    CHECK(answer(needs(4, true)) == "--micro-batch=4 --recompute=block would fit.");
    std::int64_t least = needs(16, true);
    for (const std::int64_t B : {8, 4, 2, 1}) least = std::min(least, needs(B, true));
    CHECK_THAT(answer(least), Contains("--recompute=block would fit."));
    CHECK_THAT(answer(least - 1), StartsWith("Even --micro-batch=") && Contains(group_digits(least) + " bytes"));
  }
  options.arithmetic = Sums::fast;
  options.global_batch = 12;
  CHECK_THAT(suggest_options(options, 12, layout, plan(options), plan(options).total() * 2 / 3),
             Contains("--micro-batch="));

  options = {};
  options.precision = options.gradients =
      DType::bf16;  // of one pass a step: no smaller micro-batch may be proposed
  CHECK_THAT(answer(needs(8, true)), StartsWith("Even --micro-batch=16 --recompute=block needs"));
}
