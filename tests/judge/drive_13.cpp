// The exercises of lesson 13: replicas of a model state that ranks share.

#include <algorithm>

#include "lessons/parallel/mesh/mesh_zero3_costs.hpp"
#include "lessons/parallel/mesh/sharding_mesh.hpp"
#include "lessons/parallel/zero/bucket_shards.hpp"
#include "lessons/parallel/zero/fsdp_units.hpp"
#include "tests/gpt2/tiny_model.hpp"
#include "tests/judge/driver.hpp"
#include "tests/one_machine.hpp"

namespace rankwise::judge {

namespace {

/// Ranges as first element and number, in order.
Json runs(std::vector<Range> ranges)
{
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
  Json all = Json::array();
  for (const Range& range : ranges) all.push_back({range.first, range.count});
  return all;
}

/// 13.1: the sequences of each rank, by micro-batch.
const Exercise sequences("13.1", [](const Json& in) -> Json {
  const int R = in["replicas"], s = in["s"], t = in["t"];
  Json ranks = Json::array();
  for (int rank = 0; rank < R * s * t; ++rank) {
    const ShardingPlace place = sharding_place({{"replicas", R}, {"shard", s}, {"tp", t}}, rank);
    Json micro_batches = Json::array();
    for (const Range& run : sequences_of_step({in["global_batch"], in["micro_batch"], 8}, place))
      micro_batches.push_back({run.first, run.count});
    ranks.push_back(micro_batches);
  }
  return {{"sequences by rank", ranks}};
});

/// 13.2: what the ranks of a replica count.
const Exercise counted("13.2", [](const Json& in) -> Json {
  const int s = in["s"], t = in["t"];
  const ModelConfig config = testing::tiny_config(in["layers"], in["heads"], in["channels"], 6);
  Json ranks = Json::array();
  for (int tp = 0; tp < t; ++tp) {
    const ParameterTable table(config, {tp, t}, {0, -1}, in["persist"]);
    const UnitKind unit = in["unit"] == "block"    ? UnitKind::block
                          : in["unit"] == "branch" ? UnitKind::branch
                                                   : UnitKind::model;
    const std::vector<BucketShard> shards = make_bucket_shards(make_fsdp_units(table, unit), s);
    for (int rank = 0; rank < s; ++rank)
      ranks.push_back(runs(counted_elements(table, {tp, t}, shards_of(rank, shards))));
  }
  return {{"counted by rank", ranks}};
});

/// 13.3: what each rank sends to replicas in a step.
const Exercise between_replicas("13.3", [](const Json& in) -> Json {
  MeshZeroOptions options;
  options.tp = in["t"];
  options.shard_ranks = in["s"];
  options.micro_batch = in["micro_batch"];
  options.layers = in["layers"];
  options.gradients = type_of(in["gradients"]);
  options.messages.collectives = "ring";
  if (in["tree"]) options.arithmetic = Sums::exact;
  const int N = in["replicas"].get<int>() * options.shard_ranks * options.tp;
  Json ranks = Json::array();
  for (int rank = 0; rank < N; ++rank) {
    const ShardingPlace place = options.place({rank, N});
    const Traffic sent = hybrid_traffic(offload_plan(options, {rank, N}),
                                        testing::one_machine(place.replicas.ranks), place.replicas.rank);
    ranks.push_back({{"messages", sent.messages}, {"bytes", sent.bytes}});
  }
  return {{"sent by rank", ranks}};
});

}  // namespace

}  // namespace rankwise::judge
