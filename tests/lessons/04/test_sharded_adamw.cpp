// The update of sharded parameters equals that of one rank with all of them; and the first number that is not finite
// is reported.

#include <limits>
#include <string>

#include "common/base/error.hpp"
#include "lessons/frame/finite.hpp"
#include "lessons/parallel/zero/bucket_shards.hpp"
#include "lessons/parallel/zero/buckets.hpp"
#include "lessons/parallel/zero/sharded_adamw.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"
#include "tests/gpt2/tiny_model.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// A model whose parameters each rank has, and the shards of which it owns some.
struct Sharded {
  Sharded() { initialize_parameters(lab.stream(), parameters, table, config, 3); }

  Laboratory lab;
  ModelConfig config = tiny_config(2, 4, 32, 6);
  ParameterTable table{config};
  Tensor parameters = lab.zeros(DType::f32, {table.elements()});
  std::vector<Bucket> buckets = make_buckets(table, DType::f32, 20'000);
  std::vector<BucketShard> bucket_shards = make_bucket_shards(buckets, world().ranks());
  std::vector<Range> own = shards_of(world().rank(), bucket_shards);
  ShardedAdamW adamw{lab.memory(), lab.stream(), table, own, slices(parameters, own), AdamWOptions{}};
  GroupForTest test{Algorithm::ring};
};

}  // namespace

TEST_CASE("check_finite: all ranks name the first tensor that is not finite, whichever rank owns it")
{
  Sharded model;
  const Tensor gradient = model.lab.zeros(DType::f32, {model.table.elements()});
  const std::vector<Tensor> own = slices(gradient, model.own);
  const auto call = [&](double loss) {
    check_finite(7, loss, 1, model.lab.kernels(), model.adamw.shards(), own, model.test.group);
  };
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK_NOTHROW(call(1));
  CHECK_THROWS_WITH(call(nan), Contains("every tensor is finite"));
  const Parameter& late = model.table.entries().back();
  const Parameter& early = model.table.entries()[5];
  const auto spoil = [&](const Tensor& flat, const Parameter& p) {  // what a rank does not own it does not look at
    flat.slice(p.elements).span<float>()[3] = std::numeric_limits<float>::infinity();
  };
  spoil(gradient, late);
  CHECK_THROWS_WITH(call(nan), Contains("step 7") && Contains("gradient of " + late.name) && Contains("element 3"));
  spoil(gradient, early);
  CHECK_THROWS_WITH(call(nan), Contains("gradient of " + early.name));
  spoil(model.parameters, late);
  CHECK_THROWS_WITH(call(nan), Contains("parameter " + late.name));
}

TEST_CASE("ShardedAdamW: makes the updates of an AdamW over all elements, of the elements that it owns")
{
  for (const DType precision : {DType::f32, DType::bf16}) {
    Sharded model;
    Laboratory& lab = model.lab;
    const Tensor gradient = lab.filled(DType::f32, {model.table.elements()}, 4);
    const Tensor whole = lab.converted(model.parameters, precision), sharded = lab.copied(whole);
    AdamW expected(lab.memory(), lab.stream(), model.table, {0, model.table.elements()}, precision, {});
    lab.stream().copy(expected.master(whole), model.parameters);
    const std::int64_t before = lab.ledger().current(Tier::device)[Category::optimizer];
    ShardedAdamW adamw(lab.memory(), lab.stream(), model.table, model.own, slices(sharded, model.own), {});
    CHECK(lab.ledger().current(Tier::device)[Category::optimizer] - before ==
          adamw_bytes(elements_of(model.own), precision));
    for (const Shard& shard : adamw.shards())
      lab.stream().copy(shard.parameters, model.parameters.slice(shard.owned));
    adamw.round(lab.kernels());
    for (int step = 0; step < 3; ++step) {
      expected.step(lab.kernels(), whole, gradient, 0.1, 0.5);
      adamw.step(lab.kernels(), slices(gradient, model.own), 0.1, 0.5);
    }
    CHECK(adamw.updates() == 3);
    for (std::size_t i = 0; i < model.own.size(); ++i) {
      const Shard& shard = adamw.shards()[i];
      const Range own = model.own[i];
      CHECK(shard.owned == own);
      CHECK(different_bits(sharded.slice(own), whole.slice(own)) == 0);
      CHECK(different_bits(shard.parameters, expected.master(whole).slice(own)) == 0);
      CHECK(different_bits(shard.first_moments, expected.first_moments().slice(own)) == 0);
      CHECK(different_bits(shard.second_moments, expected.second_moments().slice(own)) == 0);
    }
    CHECK_THROWS(adamw.step(lab.kernels(), {}, 0.1, 1));
  }
}

TEST_CASE("make_bucket_shards: a rank owns what the collectives of the bucket leave on it")
{
  Sharded model;
  for (std::size_t b = 0; b < model.buckets.size(); ++b) {
    const Range elements = model.buckets[b].elements;
    const Range left = reduce_scatter_sum(model.parameters.slice(elements), model.test.group);
    CHECK(model.own[b] == Range{elements.first + left.first, left.count});
  }
}
