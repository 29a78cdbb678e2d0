// The exercises of lesson 04 that are functions: owners of elements, and the norm of sharded gradients.

#include <limits>

#include "lessons/parallel/zero/bucket_shards.hpp"
#include "lessons/parallel/zero/sharded_norm.hpp"
#include "tests/common/collectives/testing.hpp"
#include "tests/judge/ranges.hpp"

namespace rankwise::judge {

namespace {

/// 04.1: the shards of all buckets, and their owners.
const Exercise bucket_shards("04.1", [](const Json& in) -> Json {
  std::vector<Bucket> buckets;
  for (const Json& elements : in["buckets"]) buckets.push_back({{0, 0}, range_of(elements)});
  Json elements = Json::array(), owners = Json::array();
  for (const BucketShard& shard : make_bucket_shards(buckets, in["N"])) {
    elements.push_back(pair_of(shard.elements));
    owners.push_back(shard.owner);
  }
  return {{"elements", elements}, {"owners", owners}};
});

/// 04.2: the norm of n elements, cut into pieces of which each rank has a share. One element may be infinite.
const Exercise sharded_norm("04.2", [](const Json& in) -> Json {
  GroupForTest with(Algorithm::ring);
  testing::Laboratory lab;
  const std::int64_t n = in["n"], infinite = in["infinite"];
  const Tensor all = random_tensor(lab, DType::f32, {n}, in["seed"]);
  if (infinite >= 0) all.span<float>()[static_cast<std::size_t>(infinite)] = std::numeric_limits<float>::infinity();
  std::vector<Tensor> own;
  for (int piece = 0; piece < in["pieces"]; ++piece) {
    const Range run = Partition(n, in["pieces"]).shard(piece);
    const Range mine = Partition(run.count, world().ranks()).shard(world().rank());
    own.push_back(all.slice({run.first + mine.first, mine.count}));
  }
  return {{"squared norm", squared_norm(lab.kernels(), own, with.group)}};
});

}  // namespace

}  // namespace rankwise::judge
