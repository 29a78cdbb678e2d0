// A walk over blocks of another tier: one is used while the previous one is stored and the next one is fetched.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/error.hpp"
#include "common/program/time_ledger.hpp"
#include "lessons/parallel/offload/tiered_vector.hpp"
#include "tests/catch.hpp"
#include "tests/eventually.hpp"
#include "tests/gpt2/tiny_model.hpp"
#include "tests/world.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// Blocks in memory over a slow link, with a log of all transfers.
class SlowStore final : public BlockStore {
 public:
  /// A transfer that was begun.
  struct Transfer {
    bool fetched = false;        // or stored
    std::size_t block = 0;       // of the vector
    const void* slot = nullptr;  // where it is used
    std::atomic<bool> done = false;
  };

  SlowStore(Tiers& tiers, std::vector<std::vector<float>> blocks)
      : BlockStore(tiers, Tier::host, Category::parameters, DType::f32, "blocks"), memory(std::move(blocks))
  {
  }

  Pending fetch(std::size_t block, const Tensor& to, Tier) override { return begin(true, block, to); }
  Pending store(std::size_t block, const Tensor& from, Tier) override { return begin(false, block, from); }

  /// Whether a block is being fetched, or stored.
  bool is_on_its_way(bool fetched, std::size_t block) const
  {
    return std::ranges::any_of(log, [&](const auto& transfer) {
      return transfer->fetched == fetched && transfer->block == block && !transfer->done;
    });
  }
  /// Returns when all that was begun is done.
  void finish() const
  {
    for (const auto& transfer : log)
      while (!transfer->done) std::this_thread::yield();
  }
  /// Transfers that begin from now on do not end before let_go(). A wait for one of them turns this off for good.
  void hold() { held = !gave_up; }
  /// Ends that.
  void let_go() { held = false; }

  std::vector<std::vector<float>> memory;
  std::vector<std::unique_ptr<Transfer>> log;
  bool shared_a_slot = false;         // whether two transfers were on their way to or from one slot
  std::atomic<bool> gave_up = false;  // whether a held transfer was waited for

 private:
  Pending begin(bool fetched, std::size_t block, const Tensor& slot)
  {
    for (const auto& other : log) shared_a_slot |= other->slot == slot.raw() && !other->done;
    Transfer& transfer = *log.emplace_back(std::make_unique<Transfer>());
    transfer.fetched = fetched;
    transfer.block = block;
    transfer.slot = slot.raw();
    const auto move = [this, &transfer, fetched, block, slot] {
      using namespace std::chrono_literals;
      if (!eventually([&] { return !held || gave_up; })) gave_up = true;
      std::this_thread::sleep_for(fetched ? 3ms : 20ms);  // slots are needed again before they are free
      const std::span<float> used = slot.span<float>();
      if (fetched)
        std::copy(memory[block].begin(), memory[block].end(), used.begin());
      else
        std::copy(used.begin(), used.end(), memory[block].begin());
      transfer.done = true;
    };
    const auto number = static_cast<std::int64_t>(block);
    return fetched ? queue.fetch(number, move) : queue.store(number, move);
  }

  std::atomic<bool> held = false;
  TimeLedger time;
  TransferQueue queue{time};  // last: it uses all of the above
};

/// A vector of some blocks, each of another length, with all that it needs.
struct Walked {
  /// @param home  of the vector; device: it is used there, and does not move.
  explicit Walked(std::int64_t blocks, Tier home = Tier::host) : plan(plan_of(blocks))
  {
    std::vector<std::vector<float>> content;
    for (std::size_t b = 0; b < plan.blocks.count(); ++b) content.push_back(values(b, 0));
    store = std::make_shared<SlowStore>(tiers, content);
    vector = std::make_unique<TieredVector>(tiers, home, Tier::device, DType::f32, "a vector", store);
  }

  static OffloadPlan plan_of(std::int64_t blocks)
  {
    const ParameterTable table(tiny_config(1, 4, 32, 6));
    OffloadPlan plan({},
                     {table, make_fsdp_units(table, UnitKind::branch), DType::f32, DType::f32,
                      Arithmetic(Sums::fast), Algorithm::ring, 1},
                     {}, world());
    std::vector<Range> bucket_shards;
    for (std::int64_t b = 0; b < blocks; ++b) bucket_shards.push_back({100 * b, 5 + b});
    plan.blocks = ShardBlocks(bucket_shards, {});
    return plan;
  }
  std::size_t count() const { return plan.blocks.count(); }
  /// The content of a block after a number of updates.
  std::vector<float> values(std::size_t block, int updates) const
  {
    std::vector<float> all(static_cast<std::size_t>(plan.blocks[block].count));
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = static_cast<float>(1000 * updates + static_cast<int>(10 * block + i));
    return all;
  }
  /// Whether a tensor holds that.
  bool holds(const Tensor& block, std::size_t number, int updates) const
  {
    const std::vector<float> expected = values(number, updates);
    return std::ranges::equal(block.span<float>(), expected);
  }
  void fill(const Tensor& block, std::size_t number, int updates) const
  {
    std::ranges::copy(values(number, updates), block.span<float>().begin());
  }
  /// Whether all blocks of the store hold that.
  bool stored(int updates) const
  {
    bool same = true;
    for (std::size_t b = 0; b < count(); ++b) same = same && store->memory[b] == values(b, updates);
    return same;
  }

  MemoryLedger ledger;
  TimeLedger time;
  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<Stream> stream = device->make_stream();
  DeviceMemory memory{device.get(), &ledger};
  DeviceMemory host{&device->host_memory(), &ledger, Tier::host};
  OffloadPlan plan;
  Kernels kernels = make_reference_kernels();
  Tiers tiers{plan, {memory, *stream, kernels}, {host, *stream, kernels}, time, 0};
  std::shared_ptr<SlowStore> store;
  std::unique_ptr<TieredVector> vector;
};

}  // namespace

TEST_CASE("block: a reading walk fetches every block and stores none")
{
  for (const std::int64_t blocks : {1, 2, 3, 4, 9}) {
    Walked walked(blocks);
    for (int walk = 0; walk < 2; ++walk) {
      walked.vector->begin(Access::read);
      for (std::size_t b = 0; b < walked.count(); ++b) REQUIRE(walked.holds(walked.vector->block(b), b, 0));
      walked.vector->end();
    }
    CHECK(std::ssize(walked.store->log) == 2 * blocks);
    CHECK_FALSE(walked.store->shared_a_slot);
  }
}

TEST_CASE("block: the next walk sees the changes of an updating walk")
{
  for (const std::int64_t blocks : {1, 2, 3, 4, 9}) {
    Walked walked(blocks);
    for (int walk = 0; walk < 3; ++walk) {
      walked.vector->begin(Access::update);
      for (std::size_t b = 0; b < walked.count(); ++b) {
        const Tensor block = walked.vector->block(b);
        REQUIRE(walked.holds(block, b, walk));
        walked.fill(block, b, walk + 1);
      }
      walked.vector->end();
      REQUIRE(walked.stored(walk + 1));
    }
    CHECK(std::ssize(walked.store->log) == 6 * blocks);
    CHECK_FALSE(walked.store->shared_a_slot);
  }
}

TEST_CASE("block: a writing walk stores every block and fetches none")
{
  for (const std::int64_t blocks : {1, 2, 3, 4, 9}) {
    Walked walked(blocks);
    walked.vector->begin(Access::write);
    for (std::size_t b = 0; b < walked.count(); ++b) walked.fill(walked.vector->block(b), b, 1);
    walked.vector->end();
    CHECK(walked.stored(1));
    CHECK(std::ssize(walked.store->log) == blocks);
    CHECK_FALSE(walked.store->shared_a_slot);
  }
}

TEST_CASE("block: while one is used, the next one is fetched and the previous one is stored")
{
  for (const Access access : {Access::read, Access::update}) {
    Walked walked(7);
    SlowStore& store = *walked.store;
    walked.vector->begin(access);
    for (std::size_t b = 0; b < walked.count(); ++b) {
      if (b > 0) {
        store.finish();
        store.hold();  // what begins now has not ended when the block is given out
      }
      walked.vector->block(b);
      if (b > 0 && b + 1 < walked.count()) CHECK(store.is_on_its_way(true, b + 1));
      if (b > 0 && access == Access::update) CHECK(store.is_on_its_way(false, b - 1));
      store.let_go();
    }
    walked.vector->end();
    REQUIRE_FALSE(store.gave_up);  // or the next walk would wait as long
  }
}

TEST_CASE("block: a vector that does not move gives out its blocks in place")
{
  Walked walked(4, Tier::device);
  for (const Access access : {Access::read, Access::update, Access::write}) {
    walked.vector->begin(access);
    for (std::size_t b = 0; b < walked.count(); ++b)
      CHECK(walked.vector->block(b).raw() == walked.store->in_place(b).raw());
    walked.vector->end();
  }
  CHECK(walked.store->log.empty());
}

TEST_CASE("block: a block out of order is an error")
{
  for (const Tier home : {Tier::host, Tier::device}) {
    Walked walked(4, home);
    walked.vector->begin(Access::write);
    walked.vector->block(0);
    for (const std::size_t block : {std::size_t{0}, std::size_t{3}}) {
      bool refused = false;
      try {
        walked.vector->block(block);
      } catch (const NotImplemented&) {
        throw;
      } catch (const Error&) {
        refused = true;
      }
      CHECK(refused);
    }
  }
}
