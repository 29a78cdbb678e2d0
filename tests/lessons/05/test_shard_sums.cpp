// The sums of lesson 05: a rank's shards of what a GradientSum over all elements would hold.

#include "lessons/parallel/zero/bucket_shards.hpp"
#include "lessons/parallel/zero/shard_sums.hpp"
#include "lessons/parallel/zero/sharded_adamw.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/tiny_model.hpp"
#include "tests/world.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

const ModelConfig config = tiny_config(2, 4, 32, 6);
const ParameterTable table(config);

/// The elements of a shard that belong to the token embedding's gradient, counted from the gradient's first.
Range tied_in(Range shard, Range tied)
{
  const Range common = intersect(shard, tied);
  return {common.first - tied.first, common.count};
}

}  // namespace

TEST_CASE("ShardSums: over micro-batches and steps the shards have the sums of the whole vector")
{
  for (const Sums kind : {Sums::fast, Sums::exact})
    for (const int N : {1, 3, 4})
      for (const std::int64_t M : {1, 2, 4}) {
        INFO("kind = " << static_cast<int>(kind) << ", N = " << N << ", M = " << M);
        Laboratory lab;
        const Arithmetic arithmetic(kind);
        const StepPlan plan{
            table, make_buckets(table, DType::f32, 20'000), DType::f32, DType::f32, arithmetic, Algorithm::ring};
        const GradientLayout layout = sums_of(plan);
        const auto expected = arithmetic.make_gradient_sum(lab.kernels(), lab.stream(), lab.memory(), layout);
        const std::vector<Range> own = owned_shards(plan, {N - 1, N});
        ShardSums sums(lab.kernels(), lab.stream(), lab.memory(), plan, own, N);
        for (int step = 0; step < 2; ++step) {  // what is left of the first is forgotten in the second
          expected->clear();
          for (std::int64_t m = 0; m < M; ++m) {
            const auto series = static_cast<std::uint32_t>(10 * step + m);
            const Tensor flat = lab.filled(DType::f32, {layout.elements}, 1 + series);
            const Tensor tied =
                layout.tied.empty() ? Tensor() : lab.filled(DType::f32, {layout.tied.count}, 50 + series);
            const Range sequences{8 * m, 8};
            expected->add(sequences, {flat, tied});
            for (std::size_t s = 0; s < own.size(); ++s) {
              std::vector<Tensor> of_shard{flat.slice(own[s])};
              const Range part = tied_in(own[s], layout.tied);
              if (!part.empty()) of_shard.push_back(tied.slice(part));
              sums.add(s, sequences, of_shard);
            }
          }
          const std::vector<Tensor> totals = sums.totals();
          const Tensor whole = expected->total();
          REQUIRE(totals.size() == own.size());
          for (std::size_t s = 0; s < own.size(); ++s) CHECK(different_bits(totals[s], whole.slice(own[s])) == 0);
        }
      }
}

TEST_CASE("ShardSums: the formula's bytes are those allocated")
{
  for (const Sums kind : {Sums::fast, Sums::exact})
    for (const std::int64_t M : {1, 2, 4, 8}) {
      INFO("kind = " << static_cast<int>(kind) << ", M = " << M);
      Laboratory lab;
      const Arithmetic arithmetic(kind);
      const int N = world().ranks();
      const StepPlan plan{table,      make_buckets(table, DType::f32, 20'000),
                          DType::f32, DType::f32,
                          arithmetic, Algorithm::ring,
                          M * N,      1};
      const std::vector<Range> own = owned_shards(plan, world());
      ShardSums sums(lab.kernels(), lab.stream(), lab.memory(), plan, own, N);
      for (std::int64_t m = 0; m < M; ++m)
        for (std::size_t s = 0; s < own.size(); ++s) {
          const Tensor flat = lab.filled(DType::f32, {own[s].count}, 1);
          sums.add(s, {m * N, N}, {flat});
        }
      CHECK(lab.ledger().current(Tier::device) == ShardSums::bytes(plan, world()));
    }
}
