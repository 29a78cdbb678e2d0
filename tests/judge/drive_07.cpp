// Exercises of lesson 07: walks over blocks that are elsewhere, and the bytes that go over each link.

#include <map>
#include <memory>
#include <span>
#include <string>

#include "lessons/06_zero3/fsdp_units.hpp"
#include "lessons/07_offload/offload.hpp"
#include "lessons/07_offload/tiered_vector.hpp"
#include "tests/gpt2/tiny_model.hpp"
#include "tests/judge/driver.hpp"
#include "tests/judge/slow_store.hpp"

namespace rankwise::judge {

namespace {

/// Number i of a block after some walks that change it.
float value(std::size_t block, std::size_t i, int changes)
{
  return static_cast<float>(1000 * changes + static_cast<int>(20 * block + i));
}

/// A plan with blocks of different lengths, in one shard.
OffloadPlan plan_of_blocks(std::int64_t blocks)
{
  const ParameterTable table(testing::tiny_config(1, 4, 32, 6));
  const StepPlan step{
      table, make_fsdp_units(table, UnitKind::branch), DType::f32, DType::f32, false, Algorithm::ring, 1};
  OffloadPlan plan({}, step, {}, RankOf{0, 1});
  std::vector<Range> ranges;
  for (std::int64_t b = 0; b < blocks; ++b) ranges.push_back({100 * b, 5 + b});
  plan.blocks = ShardBlocks(ranges, {});
  plan.own = {{0, 100 * blocks}};
  return plan;
}

/// A vector on a slow link.
struct SlowVector {
  /// @param home  host, used by the device; or disk, used by the host.
  SlowVector(std::int64_t blocks, Tier home) : plan(plan_of_blocks(blocks))
  {
    std::vector<std::vector<float>> content;
    for (std::size_t b = 0; b < plan.blocks.count(); ++b) {
      std::vector<float>& of_block = content.emplace_back(static_cast<std::size_t>(plan.blocks[b].count));
      for (std::size_t i = 0; i < of_block.size(); ++i) of_block[i] = value(b, i, 0);
    }
    store = std::make_shared<SlowStore>(tiers, content);
    const Tier used = home == Tier::disk ? Tier::host : Tier::device;
    vector = std::make_unique<TieredVector>(tiers, home, used, DType::f32, "a vector", store);
  }

  MemoryLedger ledger;
  TimeLedger time;
  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<Stream> stream = device->make_stream();
  DeviceMemory memory{device.get(), &ledger}, host{&device->host_memory(), &ledger, Tier::host};
  OffloadPlan plan;
  std::unique_ptr<Kernels> kernels = make_reference_kernels();
  Tiers tiers{plan, {memory, *stream, *kernels}, {host, *stream, *kernels}, time, 0};
  std::shared_ptr<SlowStore> store;
  std::unique_ptr<TieredVector> vector;
};

/// One walk: what begins with each block, and the numbers that a block has when it is given out.
/// @param held  whether what begins while a block is asked for ends only after that.
Json walk(SlowVector& slow, Access access, int changes, bool held)
{
  SlowStore& store = *slow.store;
  Json blocks = Json::array();
  slow.vector->begin(access);
  blocks.push_back({{"begun", store.begun()}});
  for (std::size_t b = 0; b < slow.plan.blocks.count(); ++b) {
    if (held && b > 0) {
      store.finish();
      store.hold();
    }
    const Tensor block = slow.vector->block(b);
    store.let_go();
    const Json found = access == Access::write ? Json("new") : numbers(block);
    blocks.push_back({{"begun", store.begun()}, {"numbers", found}});
    const std::span<float> change = block.span<float>();
    if (access != Access::read)
      for (std::size_t i = 0; i < change.size(); ++i) change[i] = value(b, i, changes);
  }
  slow.vector->end();
  return {{"blocks", blocks}, {"begun at the end", store.begun()}, {"stored", store.memory}};
}

/// 07.1: walks over a vector.
const Exercise buffers("07.1", [](const Json& in) -> Json {
  SlowVector slow(in["blocks"], in["home"] == "disk" ? Tier::disk : Tier::host);
  Json walks = Json::array();
  for (const Json& name : in["walks"]) {
    const Access access = name == "read" ? Access::read : name == "write" ? Access::write : Access::update;
    walks.push_back(walk(slow, access, static_cast<int>(walks.size()) + 1, in["held"]));
  }
  return {{"walks", walks},
          {"waited for a transfer that had just begun", slow.store->gave_up()},
          {"two transfers had one slot", slow.store->shared_a_slot()}};
});

/// 07.2: the bytes that go over each link in a step of each rank.
const Exercise links("07.2", [](const Json& in) -> Json {
  const std::map<std::string, Offload> offloads{{"optimizer", Offload::optimizer},
                                                {"gradients", Offload::gradients},
                                                {"parameters", Offload::parameters},
                                                {"all", Offload::all}};
  const ModelConfig config = testing::tiny_config(in["layers"], 4, in["channels"], 6);
  const ParameterTable table(config, {}, {0, -1}, in["persist"]);
  const std::int64_t head = unit_count(config) - 1;
  std::vector<Use> uses;
  for (std::int64_t unit = 0; unit < head; ++unit) uses.push_back({unit});
  uses.push_back({head, 0});
  for (std::int64_t unit = head - 1; unit > 0; --unit) uses.push_back({unit});
  const GatherOptions gathering{.unit = UnitKind::branch, .prefetch = in["prefetch"], .persist = in["persist"]};
  const std::int64_t M = in["micro_batches"];
  const int ranks = in["ranks"];
  Json all = Json::array();
  for (int rank = 0; rank < ranks; ++rank) {
    const StepPlan step{table,
                        make_fsdp_units(table, UnitKind::branch),
                        type_of(in["gradients"]),
                        type_of(in["parameters"]),
                        in["tied_apart"],
                        Algorithm::ring,
                        M * ranks,
                        1};
    const OffloadOptions offload{offloads.at(in["offload"]), in["tier"], false};
    const OffloadPlan plan(offload, step, plan_gathers(step.buckets, uses, gathering), RankOf{rank, ranks},
                           in["clips"]);
    const LinkBytes bytes = link_traffic(plan);
    Json of_rank;
    for (const TierLink link : {TierLink::to_device, TierLink::from_device, TierLink::from_disk, TierLink::to_disk})
      of_rank[std::string(name_of(link))] = bytes[static_cast<std::size_t>(link)];
    all.push_back(of_rank);
  }
  return {{"bytes by rank", all}};
});

}  // namespace

}  // namespace rankwise::judge
