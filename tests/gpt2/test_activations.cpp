#include <vector>

#include "common/base/error.hpp"
#include "gpt2/activations.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/testing.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

// Sizes of which no two are equal, so that an exchange shows: 3 layers, 4 heads, 40 channels, 11 (16) entries.
const ModelConfig config{"test", 3, 4, 40, 9, 11, {}};

std::int64_t held(Laboratory& lab, Category category)
{
  return lab.ledger().current(Tier::device)[category];
}

}  // namespace

TEST_CASE("activation_bytes, workspace_bytes: are what the ledger counts, for parts, types and recomputation")
{
  for (const DType type : {DType::f32, DType::bf16, DType::f64})
    for (const int n : {1, 2, 4})
      for (const bool recompute : {false, true}) {
        INFO(name_of(type) << ", " << n << " parts, recompute " << recompute);
        Laboratory lab;
        const ActivationShape shape{type, 3, 5, {n - 1, n}, recompute};
        {
          const Workspace work(lab.memory(), config, shape);
          const Activations kept(lab.memory(), config, shape, work);
          CHECK(held(lab, Category::activations) == activation_bytes(config, shape));
          CHECK(held(lab, Category::workspace) == workspace_bytes(config, shape));
          CHECK(lab.ledger().current(Tier::device).total() ==
                activation_bytes(config, shape) + workspace_bytes(config, shape));
        }
        CHECK(lab.ledger().current(Tier::device).total() == 0);
      }
}

TEST_CASE("activation_bytes, workspace_bytes: are what the ledger counts where sequences are divided too")
{
  for (const DType type : {DType::f32, DType::bf16})
    for (const int n : {1, 2, 4})
      for (const int part : {0, n - 1})
        for (const bool recompute : {false, true})
          for (const bool regather : {false, true}) {
            INFO(name_of(type) << ", part " << part << " of " << n << ", recompute " << recompute << ", regather "
                               << regather);
            Laboratory lab;
            const ActivationShape shape{type, 3, 8, {part, n}, recompute, {part, n}, regather};
            const Workspace work(lab.memory(), config, shape);
            const Activations kept(lab.memory(), config, shape, work);
            CHECK(held(lab, Category::activations) == activation_bytes(config, shape));
            CHECK(held(lab, Category::workspace) == workspace_bytes(config, shape));
          }
}

TEST_CASE("kept_bytes: is what the ledger counts for runs of units and with deferred weight gradients")
{
  const Range runs[] = {{0, -1}, {0, 8}, {0, 3}, {3, 2}, {3, 5}, {1, 6}};  // 1 + 6 + 1 units
  for (const Range& units : runs)
    for (const DType type : {DType::f32, DType::bf16})
      for (const DType gradients : {DType::f32, DType::bf16})
        for (const bool recompute : {false, true})
          for (const bool defers : {false, true}) {
            INFO("units " << units.first << " + " << units.count << ", " << name_of(type) << ", gradients "
                          << name_of(gradients) << ", recompute " << recompute << ", defers weights " << defers);
            Laboratory lab;
            const ActivationShape shape{.type = type,
                                        .B = 3,
                                        .T = 5,
                                        .recompute = recompute,
                                        .units = units,
                                        .defers_weights = defers,
                                        .gradients = gradients};
            const Workspace work(lab.memory(), config, shape);
            const std::int64_t shared = held(lab, Category::activations);
            const Activations kept(lab.memory(), config, shape, work);
            CHECK(held(lab, Category::activations) - shared == kept_bytes(config, shape));
            CHECK(held(lab, Category::activations) == activation_bytes(config, shape));
            const Activations another(lab.memory(), config, shape, work);
            CHECK(held(lab, Category::activations) - shared == 2 * kept_bytes(config, shape));
          }
}

TEST_CASE("kept_bytes: the bytes of all runs of units add up to those of the whole model")
{
  for (const bool recompute : {false, true})
    for (const bool defers : {false, true}) {
      ActivationShape shape{.type = DType::f32, .B = 3, .T = 5, .recompute = recompute, .defers_weights = defers};
      const std::int64_t whole = kept_bytes(config, shape);
      std::int64_t sum = 0;
      for (const Range& units : {Range{0, 3}, Range{3, 2}, Range{5, 3}}) {
        shape.units = units;
        CHECK(shape.blocks(config) == 1);
        sum += kept_bytes(config, shape);
      }
      CHECK(sum == whole);
    }
}

TEST_CASE("kept_bytes: deferred weight gradients take 2 C + 7 C a row and block, C for the embedding, 2 C a norm")
{
  constexpr std::int64_t R = 15, C = 40;
  const auto deferred = [](const Range& units, DType type, DType gradients) {
    ActivationShape shape{.type = type, .B = 3, .T = 5, .units = units, .gradients = gradients};
    const std::int64_t without = kept_bytes(config, shape);
    shape.defers_weights = true;
    return kept_bytes(config, shape) - without;
  };
  CHECK(deferred({3, 2}, DType::f32, DType::f32) == 4 * R * 9 * C + 4 * 4 * C);
  CHECK(deferred({0, 3}, DType::f32, DType::f32) == 4 * R * 10 * C + 4 * 4 * C);
  CHECK(deferred({5, 3}, DType::f32, DType::f32) == 4 * R * 9 * C + 4 * 6 * C);
  CHECK(deferred({0, 8}, DType::bf16, DType::f32) == 2 * R * (3 * 9 + 1) * C + 4 * (3 * 4 + 2) * C);
}

TEST_CASE("Activations: a run of units has its own blocks, and tokens where they are looked up and compared with")
{
  Laboratory lab;
  const auto of_units = [&](const Range& units, const Workspace& work) {
    return Activations(lab.memory(), config,
                       {.type = DType::f32, .B = 3, .T = 5, .units = units, .defers_weights = true}, work);
  };
  const Workspace work(lab.memory(), config, {.type = DType::f32, .B = 3, .T = 5});
  const Activations first = of_units({0, 3}, work), middle = of_units({3, 2}, work), last = of_units({5, 3}, work);
  for (const Activations* kept : {&first, &middle, &last}) {
    const bool begins = kept == &first, ends = kept == &last;
    CHECK(kept->branches.size() == 2);
    CHECK(kept->inputs.empty() == !begins);
    CHECK(kept->targets.empty() == !ends);
    CHECK(kept->stream(0).raw() == kept->branches[0].input.raw());
    CHECK(kept->stream(2).empty() == !ends);
    CHECK(kept->head.logits.empty() == !ends);
    CHECK(kept->deferred.stream.empty() == !begins);
    CHECK(kept->deferred.norm_weight.empty() == !ends);
    REQUIRE(kept->deferred.branches.size() == 2);
    CHECK(kept->deferred.branches[0].doutput.shape() == Shape{15, 40});
    CHECK(kept->deferred.branches[0].dinner.shape() == Shape{15, 120});
    CHECK(kept->deferred.branches[1].dinner.shape() == Shape{15, 160});
    CHECK(kept->deferred.branches[1].norm_bias.shape() == Shape{40});
  }
}

TEST_CASE("activation_bytes: of a layer the published share stays, without T x T: 4 + 12/t, 2 + 14/t, 16/t times C")
{
  // The difference of two layers and one is a layer; s = 4 bytes. Statistics are separate: 4 of R or R/t rows, heads/t of R.
  constexpr std::int64_t B = 3, T = 8, R = B * T, C = 40;
  const auto of_layer = [](const ActivationShape& shape) {
    ModelConfig two = config, one = config;
    two.layers = 2;
    one.layers = 1;
    return activation_bytes(two, shape) - activation_bytes(one, shape);
  };
  for (const int t : {1, 2, 4}) {
    const std::int64_t heads = 4 / t;
    CHECK(of_layer({DType::f32, B, T, {0, t}}) == 4 * R * (4 * C + 12 * C / t + 4 + heads));
    CHECK(of_layer({DType::f32, B, T, {0, t}, false, {0, t}}) ==
          4 * R * (2 * C + 14 * C / t + heads) + 4 * 4 * R / t);
    CHECK(of_layer({DType::f32, B, T, {0, t}, false, {0, t}, true}) ==
          4 * R * (16 * C / t + heads) + 4 * 4 * R / t);
    CHECK(of_layer({DType::f32, B, T, {0, t}, true, {0, t}}) == 4 * R * C / t);  // with recomputation its input
  }
  CHECK(workspace_bytes(config, {DType::f32, B, T, {0, 4}, false, {0, 4}}) == 4 * R * (C + C / 4 + C));
  CHECK(workspace_bytes(config, {DType::f32, B, T, {0, 4}, false, {0, 4}, true}) == 4 * R * (2 * C + C / 4 + C));
}

TEST_CASE("Activations: with sequence parallelism tensors between the divided layers have R / t rows")
{
  Laboratory lab;
  for (const bool regather : {false, true}) {
    const ActivationShape shape{DType::bf16, 3, 8, {1, 2}, false, {1, 2}, regather};
    const Workspace work(lab.memory(), config, shape);
    const Activations kept(lab.memory(), config, shape, work);
    CHECK(work.output.shape() == Shape{24, 40});
    CHECK(work.dstream.shape() == Shape{12, 40});
    CHECK(work.gathered.empty() == !regather);
    if (regather) CHECK(work.gathered.shape() == Shape{24, 40});
    for (std::size_t i = 0; i < 6; ++i) {
      const BranchActivations& a = kept.branches[i];
      CHECK(a.input.shape() == Shape{12, 40});
      CHECK(a.normalised.shape() == Shape{regather ? 12 : 24, 40});
      CHECK(a.mean.shape() == Shape{12});
      CHECK(a.rstd.shape() == Shape{12});
      CHECK(a.inner.shape() == Shape{24, i % 2 == 0 ? 60 : 80});
    }
    CHECK(kept.head.input.shape() == Shape{12, 40});
    CHECK(kept.head.normalised.shape() == Shape{regather ? 12 : 24, 40});
    CHECK(kept.head.mean.shape() == Shape{12});
    CHECK(kept.head.logits.shape() == Shape{24, 8});
    CHECK(kept.head.maximum.shape() == Shape{24});
    CHECK(kept.inputs.shape() == Shape{24});  // every part looks up all tokens
  }
}

TEST_CASE("activation_bytes: equals figures computed by hand")
{
  // R = 15 rows of f32. A block: 16 C = 640 numbers, 4 statistics and 4 heads; the head: 2 C + 16 numbers,
  // 5 statistics and 2 tokens.
  const ActivationShape shape{DType::f32, 3, 5, {}, false};
  CHECK(activation_bytes(config, shape) == 4 * 15 * (3 * (640 + 8) + (80 + 16 + 7)));
  CHECK(workspace_bytes(config, shape) == 4 * 15 * 6 * 40);
  // With recomputation: 3 inputs of blocks, one block without its input, the head.
  CHECK(activation_bytes(config, {DType::f32, 3, 5, {}, true}) == 4 * 15 * (3 * 40 + 648 - 40 + 103));
  // bf16 halves all but statistics and tokens; two parts divide what is inside a branch, and the vocabulary.
  CHECK(activation_bytes(config, {DType::bf16, 3, 5, {}, false}) == 2 * 15 * (3 * (640 + 16) + (80 + 16 + 14)));
  CHECK(activation_bytes(config, {DType::f32, 3, 5, {1, 2}, false}) ==
        4 * 15 * (3 * (160 + 240 + 6) + (80 + 8 + 7)));
}

TEST_CASE("Activations: has tensors of the documented shapes; stream(i) is the input of branch i or the head")
{
  Laboratory lab;
  const ActivationShape shape{DType::bf16, 3, 5, {1, 2}, false};
  const Workspace work(lab.memory(), config, shape);
  const Activations kept(lab.memory(), config, shape, work);
  CHECK(work.block.empty());
  CHECK(work.output.shape() == Shape{15, 40});
  CHECK(work.dstream.shape() == Shape{15, 40});
  CHECK(work.wide.elements() == 15 * 4 * 20);
  CHECK(kept.inputs.type() == DType::i32);
  CHECK(kept.inputs.shape() == Shape{15});
  CHECK(kept.targets.shape() == Shape{15});
  REQUIRE(kept.branches.size() == 6);
  for (std::size_t i = 0; i < 6; ++i) {
    const BranchActivations& a = kept.branches[i];
    const bool attention = i % 2 == 0;
    CHECK(a.input.shape() == Shape{15, 40});
    CHECK(a.normalised.shape() == Shape{15, 40});
    CHECK(a.mean.shape() == Shape{15});
    CHECK(a.mean.type() == DType::f32);
    CHECK(a.rstd.shape() == Shape{15});
    CHECK(a.inner.shape() == Shape{15, attention ? 60 : 80});
    CHECK(a.hidden.shape() == Shape{15, attention ? 20 : 80});
    CHECK(a.log_sum_exp.empty() == !attention);
    if (attention) CHECK(a.log_sum_exp.shape() == Shape{3, 2, 5});
    CHECK(kept.stream(i).raw() == a.input.raw());
  }
  CHECK(kept.stream(6).raw() == kept.head.input.raw());
  CHECK(kept.head.logits.shape() == Shape{15, 8});
  CHECK(kept.head.logits.type() == DType::bf16);
  CHECK(kept.head.sum.type() == DType::f32);
}

TEST_CASE("Activations: under recomputation blocks share all but their inputs, and micro-batches share that block")
{
  Laboratory lab;
  const ActivationShape shape{DType::f32, 3, 5, {}, true};
  const Workspace work(lab.memory(), config, shape);
  const Activations one(lab.memory(), config, shape, work);
  const std::int64_t first = held(lab, Category::activations);
  const Activations two(lab.memory(), config, shape, work);
  CHECK(one.branches[0].input.raw() != one.branches[2].input.raw());
  CHECK(one.branches[0].input.raw() != two.branches[0].input.raw());
  CHECK(one.branches[0].inner.raw() == one.branches[4].inner.raw());
  CHECK(one.branches[1].input.raw() == two.branches[3].input.raw());
  // The second pays for the inputs of three blocks, for its head and its tokens.
  CHECK(held(lab, Category::activations) - first == 4 * 15 * (3 * 40 + 103));
}

TEST_CASE("Activations: an allocation beyond the device's memory is refused, and earlier ones are freed")
{
  const std::unique_ptr<Device> device = make_cpu_device();
  const ActivationShape shape{DType::f32, 3, 5, {}, false};
  const std::int64_t needed = activation_bytes(config, shape) + workspace_bytes(config, shape);
  for (const std::int64_t missing : {0, 1}) {
    MemoryLedger ledger(needed - missing);
    const DeviceMemory memory{device.get(), &ledger};
    const Workspace work(memory, config, shape);
    if (missing == 0)
      CHECK_NOTHROW(Activations(memory, config, shape, work));
    else
      CHECK_THROWS_AS(Activations(memory, config, shape, work), Error);
    CHECK(ledger.current(Tier::device).total() == workspace_bytes(config, shape));
  }
}
