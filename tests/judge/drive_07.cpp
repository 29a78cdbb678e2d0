// Exercises of lesson 07: walks over blocks that are elsewhere, the bytes that go over each link, and what the frame reads
// and writes of weights and moments.

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/error.hpp"
#include "lessons/parallel/offload/offload.hpp"
#include "lessons/parallel/offload/tiered_adamw.hpp"
#include "lessons/parallel/offload/tiered_vector.hpp"
#include "lessons/parallel/zero/fsdp_units.hpp"
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

/// A step of a small model on one rank, branch by branch.
StepPlan step_plan()
{
  const ParameterTable table(testing::tiny_config(1, 4, 32, 6));
  const Arithmetic fast(Sums::fast);
  return {table, make_fsdp_units(table, UnitKind::branch), DType::f32, DType::f32, fast, Algorithm::ring, 1};
}

/// A plan with blocks of different lengths, in one shard.
OffloadPlan plan_of_blocks(std::int64_t blocks)
{
  OffloadPlan plan({}, step_plan(), {}, RankOf{0, 1});
  std::vector<Range> ranges;
  for (std::int64_t b = 0; b < blocks; ++b) ranges.push_back({100 * b, 5 + b});
  plan.blocks = ShardBlocks(ranges, {});
  plan.own = {{0, 100 * blocks}};
  return plan;
}

/// A vector on a slow link.
struct SlowVector {
  /// @param home  host, used by the device; disk, used by the host; or device, used there, so that nothing moves.
  SlowVector(std::int64_t blocks, Tier home) : plan(plan_of_blocks(blocks))
  {
    std::vector<std::vector<float>> content;
    for (std::size_t b = 0; b < plan.blocks.count(); ++b) {
      std::vector<float>& of_block = content.emplace_back(static_cast<std::size_t>(plan.blocks[b].count));
      for (std::size_t i = 0; i < of_block.size(); ++i) of_block[i] = value(b, i, 0);
    }
    store = std::make_shared<SlowStore>(tiers, content);
    for (std::size_t b = 0; b < content.size(); ++b) std::ranges::copy(content[b], in_place(b).begin());
    const Tier used = home == Tier::disk ? Tier::host : Tier::device;
    vector = std::make_unique<TieredVector>(tiers, home, used, DType::f32, "a vector", store);
  }

  /// A block where nothing moves.
  std::span<float> in_place(std::size_t block) { return store->in_place(block).span<float>(); }

  MemoryLedger ledger;
  TimeLedger time;
  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<Stream> stream = device->make_stream();
  DeviceMemory memory{device.get(), &ledger}, host{&device->host_memory(), &ledger, Tier::host};
  OffloadPlan plan;
  Kernels kernels = make_reference_kernels();
  Tiers tiers{plan, {memory, *stream, kernels}, {host, *stream, kernels}, time, 0};
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
  Json in_place = Json::array();
  for (std::size_t b = 0; b < slow.plan.blocks.count(); ++b) in_place.push_back(slow.in_place(b));
  return {{"blocks", blocks},
          {"begun at the end", store.begun()},
          {"stored", store.memory},
          {"stored in place", in_place}};
}

/// Whether a block that is not the next one is refused, before anything moves.
bool refuses(SlowVector& slow, std::size_t block)
{
  bool refused = false;
  slow.vector->begin(Access::write);
  try {
    slow.vector->block(block);
  } catch (const Error&) {
    refused = true;
  }
  return refused;
}

/// 07.1: walks over a vector.
const Exercise buffers("07.1", [](const Json& in) -> Json {
  const Tier home = in["home"] == "disk" ? Tier::disk : in["home"] == "host" ? Tier::host : Tier::device;
  SlowVector slow(in["blocks"], home);
  if (in.contains("out_of_order")) return {{"refuses a block out of order", refuses(slow, in["out_of_order"])}};
  Json walks = Json::array();
  for (const Json& name : in["walks"]) {
    const Access access = name == "read" ? Access::read : name == "write" ? Access::write : Access::update;
    walks.push_back(walk(slow, access, static_cast<int>(walks.size()) + 1, in["held"]));
  }
  return {{"walks", walks},
          {"waited for a transfer that had just begun", slow.store->gave_up()},
          {"two transfers had one slot", slow.store->shared_a_slot()}};
});

const std::map<std::string, Offload> offloads{{"optimizer", Offload::optimizer},
                                              {"gradients", Offload::gradients},
                                              {"parameters", Offload::parameters},
                                              {"all", Offload::all}};

/// 07.2: the bytes that go over each link in a step of each rank.
const Exercise links("07.2", [](const Json& in) -> Json {
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
                        Arithmetic(in["tied_apart"] ? Sums::exact : Sums::fast),
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

/// A range that is given as first element and number.
Range range_of(const Json& range)
{
  return {range[0], range[1]};
}

/// AdamW of a rank whose shards are cut into blocks. The elements outside of them do not exist.
struct TieredShards {
  explicit TieredShards(const Json& in) : plan(plan_for(in))
  {
    tiers.links().begin_step();
    const auto parameters = std::make_shared<BlockStore>(tiers, plan.tier_of(Category::parameters),
                                                         Category::parameters, DType::f32, "parameters");
    adamw = std::make_unique<TieredAdamW>(plan, tiers, plan.step.table, parameters, AdamWOptions{});
    adamw->for_each(Access::write, [](const Shard& block, Stream&) { fill(block, 0); });
  }

  static OffloadPlan plan_for(const Json& in)
  {
    OffloadPlan plan({offloads.at(in["offload"]), in["tier"], false}, step_plan(), {}, RankOf{0, 1});
    plan.own.clear();
    for (const Json& shard : in["own"]) plan.own.push_back(range_of(shard));
    plan.blocks = ShardBlocks(plan.own, range_of(in["cut"]));  // a border is where a tied tensor begins or ends
    return plan;
  }

  /// Gives elements weights and moments that depend on their place.
  static void fill(const Shard& some, float more)
  {
    for (std::int64_t i = 0; i < some.owned.count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const auto element = static_cast<float>(some.owned.first + i);
      some.parameters.span<float>()[at] = element + more;
      some.first_moments.span<float>()[at] = 2 * element + more;
      some.second_moments.span<float>()[at] = 3 * element + more;
    }
  }

  /// Weights and moments of all elements that a walk shows, by number of the element; in any order of the pieces.
  static Json shown(const std::function<void(Access, const UseShard&)>& for_each)
  {
    std::map<std::int64_t, std::vector<float>> found;  // an element that is shown twice has more numbers
    bool empty = false;
    for_each(Access::read, [&](const Shard& some, Stream&) {
      empty |= some.owned.empty();
      for (std::int64_t i = 0; i < some.owned.count; ++i)
        for (const Tensor& of : {some.parameters, some.first_moments, some.second_moments})
          found[some.owned.first + i].push_back(of.span<float>()[static_cast<std::size_t>(i)]);
    });
    return {{"elements", found}, {"a piece is empty", empty}};
  }

  MemoryLedger ledger;
  TimeLedger time;
  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<Stream> stream = device->make_stream();
  DeviceMemory memory{device.get(), &ledger}, host{&device->host_memory(), &ledger, Tier::host};
  OffloadPlan plan;
  Kernels kernels = make_reference_kernels();
  Tiers tiers{plan, {memory, *stream, kernels}, {host, *stream, kernels}, time, 0};
  std::unique_ptr<TieredAdamW> adamw;
};

/// 07.3: what is read, written and copied of a rank's shards, and the bytes that this moves.
const Exercise shards_of_adamw("07.3", [](const Json& in) -> Json {
  TieredShards rank(in);
  std::vector<Range> ranges;
  for (const Json& range : in["ranges"]) ranges.push_back(range_of(range));
  const HeldShards held = rank.adamw->shards(ranges);
  const auto moved = [&rank] { return rank.tiers.links().use().bytes; };
  Json answer;
  answer["of the table"] = &held.table == &rank.plan.step.table;
  for (const Range& range : held.ranges) answer["ranges"].push_back({range.first, range.count});
  answer["read"] = TieredShards::shown(held.for_each);
  answer["bytes moved to read"] = moved();
  for (const Json& part : in["parts"]) {
    testing::Laboratory lab;
    const Range elements = range_of(part);
    const Tensor to = lab.zeros(DType::f32, {elements.count});
    held.copy_parameters(elements, to);
    answer["copied"].push_back(numbers(to));
  }
  answer["bytes moved to copy"] = moved();
  held.for_each(in["all"] ? Access::write : Access::update,
                [](const Shard& some, Stream&) { TieredShards::fill(some, 0.5F); });
  answer["bytes moved to write"] = moved();
  answer["stored"] =
      TieredShards::shown([&](Access access, const UseShard& use) { rank.adamw->for_each(access, use); });
  return answer;
});

}  // namespace

}  // namespace rankwise::judge
