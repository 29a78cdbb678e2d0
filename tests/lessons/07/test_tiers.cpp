// Device, host and disk: their contents, the traffic of the links between them, and the ledgers of both.

#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/lessons/07/tiered_rank.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

const std::vector<Range> own{{0, 100}, {200, 1500}, {2000, 7}};
constexpr std::int64_t P = 1607, disk_block = 8192;  // 6,000 bytes take two pages

/// Tensors for the blocks of a vector.
struct Blocks {
  Blocks(TieredRank& rank, DType type, std::uint32_t series)
  {
    for (std::size_t b = 0; b < rank.plan.blocks.count(); ++b)
      tensors.push_back(rank.lab.filled(type, {rank.plan.blocks[b].count}, series + static_cast<std::uint32_t>(b)));
  }
  std::vector<Tensor> tensors;
};

}  // namespace

TEST_CASE("LinkLedger: counts what several threads move, and how long each link was busy")
{
  using namespace std::chrono_literals;
  LinkLedger ledger;
  ledger.count(TierLink::to_disk, 100, [] {});  // before the step
  ledger.add_waiting(100);
  ledger.begin_step();
  std::vector<std::thread> threads;
  for (const TierLink link : {TierLink::to_device, TierLink::to_disk})
    for (int t = 0; t < 2; ++t)
      threads.emplace_back([&ledger, link] {
        for (int i = 0; i < 1000; ++i) ledger.count(link, link == TierLink::to_disk ? 3 : 5, [] {});
      });
  for (std::thread& thread : threads) thread.join();
  ledger.count(TierLink::from_disk, 7, [] { std::this_thread::sleep_for(20ms); });
  ledger.add_waiting(1.5);
  ledger.add_waiting(2);
  const LinkUse use = ledger.use();
  CHECK(use.bytes == LinkBytes{10'000, 0, 7, 6'000});
  CHECK(use.busy_s[2] >= 0.02);
  CHECK(use.busy_s[1] == 0);
  CHECK(use.waited_s == 3.5);
  CHECK_THROWS(ledger.count(TierLink::from_disk, 7, [] { throw Error("it did not arrive"); }));
  CHECK(ledger.use().bytes[2] == 7);
}

TEST_CASE("BlockStore: a block that was stored is fetched again, from every tier to every other")
{
  for (const DType type : {DType::f32, DType::bf16})
    for (const auto& [home, used] : {std::pair(Tier::device, Tier::host),
                                     {Tier::host, Tier::device},
                                     {Tier::disk, Tier::host},
                                     {Tier::disk, Tier::device}}) {
      INFO(rankwise::name_of(home) << " > " << rankwise::name_of(used));
      TieredRank rank({.tier = Tier::disk}, own);
      rank.make_slow();
      const auto first = std::make_shared<BlockStore>(rank.tiers, home, Category::parameters, type, "parameters");
      const auto second = std::make_shared<BlockStore>(rank.tiers, home, Category::optimizer, type, "moments");
      const Blocks a(rank, type, 10), b(rank, type, 20);
      const BlockBuffer out = rank.tiers.make_slot(home, used, type, "a block"),
                        in = rank.tiers.make_slot(home, used, type, "a block");
      for (std::size_t i = 0; i < 3; ++i)
        for (const auto& [store, blocks] : {std::pair(first.get(), &a), {second.get(), &b}}) {
          const Tensor from = out.tensor(blocks->tensors[i].elements());
          rank.stream->copy(from, blocks->tensors[i]);
          Pending transfer = store->store(i, from, used);
          transfer.wait();
        }
      for (const std::size_t i : {2, 0, 1})
        for (const auto& [store, blocks] : {std::pair(second.get(), &b), {first.get(), &a}}) {
          const Tensor to = in.tensor(blocks->tensors[i].elements());
          rank.stream->zero(to);
          Pending transfer = store->fetch(i, to, used);
          transfer.wait();
          CHECK(different_bits(to, blocks->tensors[i]) == 0);
          if (home != Tier::disk) CHECK(different_bits(store->in_place(i), blocks->tensors[i]) == 0);
        }
      CHECK(first->home() == home);
      if (home == Tier::disk) CHECK_THROWS_WITH(first->in_place(0), Contains("used in place"));
    }
}

TEST_CASE("BlockStore: a fetch waits for the store of the same block, not for that of another vector")
{
  TieredRank rank({}, own);
  const auto store =
      std::make_shared<BlockStore>(rank.tiers, Tier::host, Category::parameters, DType::f32, "parameters");
  const Blocks old(rank, DType::f32, 10), later(rank, DType::f32, 20);
  for (std::size_t i = 0; i < 3; ++i) rank.put(*store, i, old.tensors[i]);
  rank.device.copy_ms = 20;
  const Tensor to = rank.lab.zeros(DType::f32, {own[1].count}), other = rank.lab.zeros(DType::f32, {own[0].count});
  Pending goes = store->store(1, later.tensors[1], Tier::device), comes = store->fetch(1, to, Tier::device),
          next = store->fetch(0, other, Tier::device);
  for (Pending* transfer : {&comes, &goes, &next}) transfer->wait();
  CHECK(different_bits(to, later.tensors[1]) == 0);
  CHECK(different_bits(other, old.tensors[0]) == 0);
}

TEST_CASE("BlockStore: each move is counted, on each link that it goes over")
{
  TieredRank rank({.tier = Tier::disk}, own);
  const std::int64_t bytes = 4 * 1500;
  const auto moves = [&](Tier home, Tier used, bool in) {
    const auto store =
        std::make_shared<BlockStore>(rank.tiers, home, Category::parameters, DType::f32, "parameters");
    const BlockBuffer slot = rank.tiers.make_slot(home, used, DType::f32, "a block");
    const Tensor block = slot.tensor(1500);
    Pending stored = store->store(1, block, used);  // so that there is something to fetch
    stored.wait();
    const LinkBytes before = rank.tiers.links().use().bytes;
    Pending transfer = in ? store->fetch(1, block, used) : store->store(1, block, used);
    transfer.wait();
    return moved(rank, before);
  };
  CHECK(moves(Tier::host, Tier::device, true) == LinkBytes{bytes, 0, 0, 0});
  CHECK(moves(Tier::host, Tier::device, false) == LinkBytes{0, bytes, 0, 0});
  CHECK(moves(Tier::device, Tier::host, true) == LinkBytes{0, bytes, 0, 0});
  CHECK(moves(Tier::device, Tier::host, false) == LinkBytes{bytes, 0, 0, 0});
  CHECK(moves(Tier::disk, Tier::host, true) == LinkBytes{0, 0, disk_block, 0});
  CHECK(moves(Tier::disk, Tier::host, false) == LinkBytes{0, 0, 0, disk_block});
}

TEST_CASE("BlockStore: from the disk to the device over both links")
{
  TieredRank rank({.tier = Tier::disk}, own);
  const auto store =
      std::make_shared<BlockStore>(rank.tiers, Tier::disk, Category::parameters, DType::bf16, "parameters");
  const Tensor block = rank.lab.filled(DType::bf16, {1500}, 3);
  Pending out = store->store(1, block, Tier::device);
  out.wait();
  CHECK(rank.tiers.links().use().bytes == LinkBytes{0, 3000, 0, disk_block});
  Pending in = store->fetch(1, block, Tier::device);
  in.wait();
  CHECK(rank.tiers.links().use().bytes == LinkBytes{3000, 3000, disk_block, disk_block});
}

TEST_CASE("Tiers: buffers are counted in their tier and category until they are freed")
{
  TieredRank rank({.tier = Tier::disk}, own);
  const CategoryBytes host_before = rank.ledger.current(Tier::host);
  CHECK(host_before[Category::staging] == 2 * (disk_block + disk_alignment));
  {
    const auto host =
        std::make_shared<BlockStore>(rank.tiers, Tier::host, Category::gradients, DType::bf16, "gradients");
    const auto device =
        std::make_shared<BlockStore>(rank.tiers, Tier::device, Category::optimizer, DType::f32, "moments");
    const auto disk =
        std::make_shared<BlockStore>(rank.tiers, Tier::disk, Category::parameters, DType::bf16, "parameters");
    CHECK(rank.ledger.current(Tier::host)[Category::gradients] == 2 * P);
    CHECK(rank.ledger.current(Tier::device)[Category::optimizer] == 4 * P);
    CHECK(rank.ledger.current(Tier::disk)[Category::parameters] == 3 * disk_block);
    const BlockBuffer slot = rank.tiers.make_slot(Tier::disk, Tier::device, DType::bf16, "a block");
    CHECK(rank.ledger.current(Tier::device)[Category::staging] == 2 * 1500 + disk_alignment);
    const BlockBuffer on_host = rank.tiers.make_slot(Tier::disk, Tier::host, DType::bf16, "a block");
    CHECK(rank.ledger.current(Tier::host)[Category::staging] == 3 * (disk_block + disk_alignment));
    CHECK(reinterpret_cast<std::uintptr_t>(on_host.tensor(7).raw()) % disk_alignment == 0);
  }
  CHECK(rank.ledger.current(Tier::host) == host_before);
  CHECK(rank.ledger.current(Tier::device).total() == 0);
  CHECK(rank.ledger.current(Tier::disk).total() == 0);
}

TEST_CASE("Tiers: a vector of the tied tensor has its blocks and no others")
{
  TieredRank rank({.tier = Tier::disk, .exact = true});
  const ShardBlocks& blocks = rank.plan.blocks;
  REQUIRE(blocks.tied_elements() == 512);
  for (const Tier tier : {Tier::host, Tier::disk}) {
    const auto tied =
        std::make_shared<BlockStore>(rank.tiers, tier, Category::exact_sums, DType::f32, "tied gradients", true);
    const auto other = std::make_shared<BlockStore>(rank.tiers, tier, Category::gradients, DType::f32, "gradients");
    CHECK(rank.ledger.current(tier)[Category::exact_sums] ==
          (tier == Tier::host ? 4 * 512 : rank.plan.disk_block_bytes()));
    const Tensor flat = rank.lab.filled(DType::f32, {26'176}, 4), second = rank.lab.filled(DType::f32, {26'176}, 5);
    rank.put_all(*other, flat);
    for (std::size_t b = 0; b < blocks.count(); ++b)
      if (blocks.is_tied(b)) rank.put(*tied, b, second.slice(blocks[b]));
    CHECK(rank.different(*other, flat) == 0);
    for (std::size_t b = 0; b < blocks.count(); ++b) {
      if (!blocks.is_tied(b)) continue;
      const Tensor there = rank.lab.zeros(DType::f32, {blocks[b].count});
      rank.get(*tied, b, there);
      CHECK(different_bits(there, second.slice(blocks[b])) == 0);
    }
  }
}

TEST_CASE("Tiers: a store over existing tensors uses them in place")
{
  TieredRank rank({}, {{0, 100}, {200, 300'000}});
  const std::vector<Tensor> bucket_shards{rank.lab.filled(DType::f32, {100}, 1),
                                          rank.lab.filled(DType::f32, {300'000}, 2)};
  const auto store = std::make_shared<BlockStore>(rank.tiers, bucket_shards);
  CHECK(rank.ledger.current(Tier::device).total() == 0);
  CHECK(store->home() == Tier::device);
  REQUIRE(rank.plan.blocks.count() == 3);
  CHECK(store->in_place(0).raw() == bucket_shards[0].raw());
  CHECK(store->in_place(1).raw() == bucket_shards[1].raw());
  CHECK(store->in_place(2).raw() == bucket_shards[1].raw() + 4 * 262'144);
  CHECK(store->in_place(2).elements() == 300'000 - 262'144);
  const BlockBuffer slot = rank.tiers.make_slot(Tier::device, Tier::host, DType::f32, "a block");
  const Tensor block = slot.tensor(300'000 - 262'144);
  Pending transfer = store->fetch(2, block, Tier::host);
  transfer.wait();
  CHECK(different_bits(block, bucket_shards[1].slice({262'144, block.elements()})) == 0);
}

TEST_CASE("Tiers: waiting is counted, as exposed")
{
  TieredRank rank({}, own);
  const auto store =
      std::make_shared<BlockStore>(rank.tiers, Tier::host, Category::parameters, DType::f32, "parameters");
  rank.device.copy_ms = 150;  // of which this thread is elsewhere for some
  const Tensor to = rank.lab.zeros(DType::f32, {100});
  Pending transfer = store->fetch(0, to, Tier::device);
  rank.tiers.wait(transfer);
  CHECK(rank.tiers.links().use().waited_s >= 0.02);
  CHECK(rank.tiers.links().use().busy_s[0] >= 0.15);
  CHECK(rank.time.seconds(Work::exposed) >= 0.02);
  const double waited_s = rank.tiers.links().use().waited_s;
  rank.tiers.wait(transfer);  // it is there
  CHECK(rank.tiers.links().use().waited_s < waited_s + 0.1);
}

TEST_CASE("Tiers: measuring a disk leaves no block written")
{
  {
    TieredRank rank({.tier = Tier::disk}, own);
    CHECK_FALSE(rank.tiers.disk_alone());
    rank.tiers.measure();
    REQUIRE(rank.tiers.disk_alone());
    CHECK(*rank.tiers.disk_alone() > 0);
    CHECK(rank.tiers.links().use().bytes == LinkBytes{});
    const auto store =
        std::make_shared<BlockStore>(rank.tiers, Tier::disk, Category::parameters, DType::f32, "parameters");
    const BlockBuffer slot = rank.tiers.make_slot(Tier::disk, Tier::host, DType::f32, "a block");
    Pending transfer = store->fetch(0, slot.tensor(100), Tier::host);
    CHECK_THROWS_WITH(transfer.wait(), Contains("was never written"));
  }
  TieredRank rank({}, own);
  rank.tiers.measure();
  CHECK_FALSE(rank.tiers.disk_alone());
}

TEST_CASE("Tiers: a kept file is complete after it was closed")
{
  const ScratchFolder folder;
  OffloadPlan plan = make_plan({.tier = Tier::disk, .folder = folder / ""});
  plan.options.keep = true;
  Laboratory lab;
  TimeLedger time;
  const DeviceMemory memory = lab.memory(), host{&memory.device->host_memory(), memory.ledger, Tier::host};
  {
    Tiers tiers(plan, {memory, lab.stream(), lab.kernels()}, {host, lab.stream(), lab.kernels()}, time, 3);
    const auto store =
        std::make_shared<BlockStore>(tiers, Tier::disk, Category::parameters, DType::f32, "parameters");
    const BlockBuffer slot = tiers.make_slot(Tier::disk, Tier::host, DType::f32, "a block");
    const Tensor block = slot.tensor(plan.blocks[1].count);
    lab.stream().copy(block, lab.filled(DType::f32, {block.elements()}, 6));
    Pending transfer = store->store(1, block, Tier::host);
    transfer.wait();
    const std::string path = BlockFile::kept_name(folder / "", 3);
    CHECK(blocks_of(read_file(path), 3) == 0);
    tiers.close();
    const std::string file = read_file(path);
    CHECK(blocks_of(file, 3) == disk_blocks(plan));
    const auto at = static_cast<std::size_t>(plan.disk_block_bytes()),
               bytes = static_cast<std::size_t>(block.bytes());
    CHECK(std::memcmp(&file[at], block.raw(), bytes) == 0);
  }
}

TEST_CASE("Tiers: counts what goes over the links in steps, and nothing between them")
{
  TieredRank rank({.tier = Tier::disk}, own);
  const auto store =
      std::make_shared<BlockStore>(rank.tiers, Tier::host, Category::parameters, DType::f32, "parameters");
  const Tensor block = rank.lab.zeros(DType::f32, {1500});
  const auto fetch = [&] {
    Pending transfer = store->fetch(1, block, Tier::device);
    rank.tiers.wait(transfer);
  };
  rank.make_slow();
  rank.tiers.links().end_step();
  fetch();
  for (const int times : {1, 2}) {
    rank.tiers.links().begin_step();
    for (int i = 0; i < times; ++i) fetch();
    rank.tiers.links().end_step();
    fetch();
  }
  const LinkUse use = rank.tiers.links().use();
  CHECK(use.steps == 3);  // the first one has nothing
  CHECK(use.bytes == LinkBytes{3 * block.bytes(), 0, 0, 0});
  CHECK(use.seconds >= 3e-3 * TieredRank::slow_ms);
  CHECK(use.waited_s <= use.seconds);
}

TEST_CASE("Tiers: the trace shows the work of the threads")
{
  TieredRank rank({.tier = Tier::disk}, own);
  rank.time.record();
  const auto on_host =
      std::make_shared<BlockStore>(rank.tiers, Tier::host, Category::parameters, DType::f32, "parameters");
  const auto on_disk =
      std::make_shared<BlockStore>(rank.tiers, Tier::disk, Category::parameters, DType::f32, "parameters");
  const Tensor block = rank.lab.zeros(DType::f32, {100});
  for (BlockStore* store : {on_host.get(), on_disk.get()})
    for (const bool in : {false, true}) {
      Pending transfer = in ? store->fetch(0, block, Tier::device) : store->store(0, block, Tier::device);
      transfer.wait();
    }
  const std::vector<TraceEvent> events = rank.time.events();
  CHECK(events.size() == 4);
  for (const TraceEvent& event : events) CHECK((event.work == Work::fetching || event.work == Work::storing));
}

TEST_CASE("Tiers: a failure of the disk is thrown where the transfer is waited for")
{
  TieredRank rank({.tier = Tier::disk}, own);
  const auto store =
      std::make_shared<BlockStore>(rank.tiers, Tier::disk, Category::parameters, DType::f32, "parameters");
  const Tensor block = rank.lab.filled(DType::f32, {1500}, 2);
  Pending out = store->store(1, block, Tier::device);
  out.wait();
  flip_byte(path_of_unnamed(rank.folder / ""), disk_block + 10);
  Pending in = store->fetch(1, block, Tier::device);
  CHECK_THROWS_WITH(rank.tiers.wait(in), Contains("block 1 of") && Contains("is damaged"));
}
