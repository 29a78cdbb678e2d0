// The exercises of lesson 05 that are functions: the sequences of a rank, and sums of shards.

#include "lessons/04_zero1/bucket_shards.hpp"
#include "lessons/05_zero2/shard_sums.hpp"
#include "tests/common/collectives/testing.hpp"
#include "tests/gpt2/tiny_model.hpp"
#include "tests/judge/ranges.hpp"

namespace rankwise::judge {

namespace {

/// 05.2: the sequences of this rank.
const Exercise micro_batches("05.2", [](const Json& in) -> Json {
  GroupForTest with(Algorithm::ring);
  const BatchShape batch{.global_batch = in["G"], .micro_batch = in["B"], .sequence = 8};
  return {{"sequences", pairs_of(micro_batches_of_step(batch, with.group))}};
});

/// 05.3: some steps of gradient accumulation in the shards that one of N ranks owns. The answers are the sums of
/// each shard after each step, and what they need of memory.
const Exercise shard_sums("05.3", [](const Json& in) -> Json {
  testing::Laboratory lab;
  const ParameterTable table(testing::tiny_config(1, 2, in["channels"], 6));
  const Arithmetic arithmetic(in["tree"].get<bool>() ? Sums::exact : Sums::fast);
  GradientLayout layout = gradient_layout(table, DType::f32);
  if (!arithmetic.separates_tied()) layout.tied = {};
  const std::vector<Range> own =
      shards_of(in["rank"], make_bucket_shards(make_buckets(table, DType::f32, in["bytes"]), in["N"]));
  ShardSums sums(arithmetic, lab.kernels(), lab.stream(), lab.memory(), layout, own);
  const std::int64_t M = in["M"], of_all = in["sequences"];  // micro-batches, and sequences of all ranks in one
  std::int64_t seed = in["seed"];
  Json totals = Json::array();
  for (int step = 0; step < in["steps"]; ++step) {
    for (std::int64_t m = 0; m < M; ++m) {
      const Tensor flat = random_tensor(lab, DType::f32, {layout.elements}, seed++);
      const Tensor tied = random_tensor(lab, DType::f32, {layout.elements}, seed++);
      for (std::size_t shard = 0; shard < own.size(); ++shard) {
        std::vector<Tensor> gradients{flat.slice(own[shard])};
        const Range second = intersect(own[shard], layout.tied);
        if (!second.empty()) gradients.push_back(tied.slice(second));
        sums.add(shard, {m * of_all, of_all}, gradients);
      }
    }
    for (const Tensor& total : sums.totals()) totals.push_back(numbers(total));
  }
  return {{"sums", totals}, {"memory", bytes_of(lab.ledger())}};
});

}  // namespace

}  // namespace rankwise::judge
