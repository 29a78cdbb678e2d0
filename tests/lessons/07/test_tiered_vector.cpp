// Vectors used in another tier than their home: every block in turn, in three slots, however slow the transfers are.

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/error.hpp"
#include "lessons/parallel/offload/tiered_vector.hpp"
#include "tests/catch.hpp"
#include "tests/eventually.hpp"
#include "tests/lessons/07/tiered_rank.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

/// Shards of this many blocks, none as large as the one before.
std::vector<Range> bucket_shards(std::int64_t blocks)
{
  std::vector<Range> own;
  for (std::int64_t b = 0; b < blocks; ++b) own.push_back({10'000 * b, 3000 - 7 * b});
  return own;
}

/// A vector of @p blocks blocks that is stored in one tier and used in another, and its expected content.
struct Walked {
  Walked(Tier home, Tier used_in, std::int64_t blocks, DType of = DType::f32)
      : rank({.tier = Tier::disk}, bucket_shards(blocks)), used(used_in), type(of)
  {
    store = std::make_shared<BlockStore>(rank.tiers, home, Category::parameters, type, "a vector");
    vector.emplace(rank.tiers, store->home(), used, type, "a vector", store);
    rank.put_all(*store, content(0));
    rank.make_slow();
  }
  std::size_t count() const { return rank.plan.blocks.count(); }
  /// Elements of the whole flat vector, of some version.
  Tensor content(std::uint32_t version)
  {
    return rank.lab.filled(type, {10'000 * static_cast<std::int64_t>(count())}, 100 + version);
  }
  /// Walks, and compares each block with a version as soon as it is fetched.
  bool read(const Tensor& expected)
  {
    bool same = true;
    vector->begin(Access::read);
    for (std::size_t b = 0; b < count(); ++b)
      same = different_bits(vector->block(b), expected.slice(rank.plan.blocks[b])) == 0 && same;
    vector->end();
    return same;
  }
  /// Walks, and makes each block that of another version. @return whether it was that of @p before, with Access::update.
  bool change(Access access, const Tensor& before, const Tensor& after)
  {
    bool same = true;
    vector->begin(access);
    for (std::size_t b = 0; b < count(); ++b) {
      const Tensor block = vector->block(b);
      const Range elements = rank.plan.blocks[b];
      same = (access == Access::write || different_bits(block, before.slice(elements)) == 0) && same;
      rank.stream->copy(block, after.slice(elements));
    }
    vector->end();
    return same;
  }

  TieredRank rank;
  Tier used;
  DType type;
  std::shared_ptr<BlockStore> store;
  std::optional<TieredVector> vector;
};

const std::vector<std::pair<Tier, Tier>> ways{{Tier::device, Tier::host},   {Tier::host, Tier::device},
                                              {Tier::disk, Tier::host},     {Tier::disk, Tier::device},
                                              {Tier::device, Tier::device}, {Tier::host, Tier::host}};

/// Calls @p work for vectors of few blocks and of many, from every tier to every other.
template <class Work>
void for_all(const Work& work)
{
  for (const auto& [home, used] : ways)
    for (const std::int64_t blocks : {1, 2, 3, 5})
      for (const DType type : {DType::f32, DType::bf16}) {
        if (type == DType::bf16 && blocks < 5) continue;
        INFO(rankwise::name_of(home) << " > " << rankwise::name_of(used) << ", " << blocks << " blocks");
        Walked walked(home, used, blocks, type);
        work(walked);
      }
}

/// A gate that transfers of a disk wait at.
struct Gate {
  std::function<ssize_t(std::size_t, off_t)> at()
  {
    return [this](std::size_t count, off_t) {
      ++came;
      return eventually([this] { return open.load(); }) ? static_cast<ssize_t>(count) : 0;
    };
  }
  std::atomic<bool> open = false;
  std::atomic<int> came = 0;  // transfers that have begun
};

}  // namespace

TEST_CASE("TieredVector: a walk that reads sees every block, and again, and changes none")
{
  for_all([](Walked& walked) {
    const Tensor content = walked.content(0);
    CHECK(walked.read(content));
    CHECK(walked.read(content));
    CHECK(walked.rank.different(*walked.store, content) == 0);
  });
}

TEST_CASE("TieredVector: what a walk writes is there when it has ended")
{
  for_all([](Walked& walked) {
    const Tensor first = walked.content(1), second = walked.content(2);
    walked.change(Access::write, {}, first);
    CHECK(walked.rank.different(*walked.store, first) == 0);
    walked.change(Access::write, {}, second);
    CHECK(walked.read(second));
    CHECK(walked.rank.different(*walked.store, second) == 0);
  });
}

TEST_CASE("TieredVector: a walk that updates sees what the walk before it left")
{
  for_all([](Walked& walked) {
    std::uint32_t version = 0;
    for (; version < 3; ++version)
      CHECK(walked.change(Access::update, walked.content(version), walked.content(version + 1)));
    CHECK(walked.rank.different(*walked.store, walked.content(version)) == 0);
  });
}

TEST_CASE("TieredVector: walks of all kinds may follow each other, at once")
{
  for_all([](Walked& walked) {
    CHECK(walked.change(Access::update, walked.content(0), walked.content(1)));
    walked.change(Access::write, {}, walked.content(2));
    CHECK(walked.read(walked.content(2)));
    CHECK(walked.change(Access::update, walked.content(2), walked.content(3)));
    CHECK(different_bits(walked.vector->at(0), walked.content(3).slice(walked.rank.plan.blocks[0])) == 0);
    CHECK(walked.change(Access::update, walked.content(3), walked.content(4)));
    CHECK(walked.read(walked.content(4)));
  });
}

TEST_CASE("TieredVector: two over one store see each other's walks")
{
  Walked walked(Tier::disk, Tier::host, 5);
  TieredVector other(walked.rank.tiers, Tier::disk, Tier::device, DType::f32, "another use", walked.store);
  CHECK(walked.change(Access::update, walked.content(0), walked.content(1)));
  const Tensor content = walked.content(1);
  other.begin(Access::read);
  for (std::size_t b = 0; b < 5; ++b)
    CHECK(different_bits(other.block(b), content.slice(walked.rank.plan.blocks[b])) == 0);
  other.end();
}

TEST_CASE("TieredVector: a vector used in its home tier does not move, and takes no slot")
{
  for (const Tier tier : {Tier::device, Tier::host}) {
    Walked walked(tier, tier, 4);
    CHECK(walked.change(Access::update, walked.content(0), walked.content(1)));
    walked.vector->begin(Access::read);
    for (std::size_t b = 0; b < 4; ++b) CHECK(walked.vector->block(b).raw() == walked.store->in_place(b).raw());
    walked.vector->end();
    CHECK(walked.vector->at(2).raw() == walked.store->in_place(2).raw());
    CHECK(walked.rank.tiers.links().use().bytes == LinkBytes{});
    CHECK(walked.rank.ledger.current(Tier::device)[Category::staging] == 0);
  }
}

TEST_CASE("TieredVector: a walk moves each block at most once in each direction, as its access requires")
{
  const std::int64_t bytes = 4 * (5 * 3000 - 7 * 10), page = 4096, blocks_on_disk = 5 * 3 * page;
  for (const auto& [home, used, in, out] :
       {std::tuple(Tier::host, Tier::device, LinkBytes{bytes, 0, 0, 0}, LinkBytes{0, bytes, 0, 0}),
        {Tier::device, Tier::host, LinkBytes{0, bytes, 0, 0}, LinkBytes{bytes, 0, 0, 0}},
        {Tier::disk, Tier::host, LinkBytes{0, 0, blocks_on_disk, 0}, LinkBytes{0, 0, 0, blocks_on_disk}},
        {Tier::disk, Tier::device, LinkBytes{bytes, 0, blocks_on_disk, 0},
         LinkBytes{0, bytes, 0, blocks_on_disk}}}) {
    INFO(rankwise::name_of(home) << " > " << rankwise::name_of(used));
    Walked walked(home, used, 5);
    const auto moved_by = [&](Access access) {
      const LinkBytes before = walked.rank.tiers.links().use().bytes;
      walked.change(access, walked.content(0), walked.content(0));
      return moved(walked.rank, before);
    };
    LinkBytes both{};
    for (std::size_t link = 0; link < link_count; ++link) both[link] = in[link] + out[link];
    CHECK(moved_by(Access::update) == both);
    CHECK(moved_by(Access::write) == out);
    CHECK(moved_by(Access::read) == in);
  }
}

TEST_CASE("TieredVector: there are slots for three blocks where it is used")
{
  for (const auto& [home, used, bytes] : {std::tuple(Tier::host, Tier::device, std::int64_t{12'000}),
                                          {Tier::disk, Tier::device, 12'000},
                                          {Tier::disk, Tier::host, 12'288}}) {
    TieredRank rank({.tier = Tier::disk}, bucket_shards(7));
    const std::int64_t before = rank.ledger.current(used)[Category::staging];
    const TieredVector vector(rank.tiers, home, used, DType::f32, "a vector", nullptr);
    CHECK(rank.ledger.current(used)[Category::staging] - before == 3 * (bytes + 4096));
  }
}

TEST_CASE("TieredVector: from a disk a shard of blocks is prefetched, and one is stored behind the walk")
{
  constexpr std::int64_t of_a_shard = 1 << 18;  // elements of a block
  TieredRank rank({.tier = Tier::disk}, {{0, 2 * of_a_shard},
                                         {8 * of_a_shard, 2 * of_a_shard},
                                         {16 * of_a_shard, 2 * of_a_shard},
                                         {24 * of_a_shard, 2 * of_a_shard}});
  const auto store =
      std::make_shared<BlockStore>(rank.tiers, Tier::disk, Category::parameters, DType::f32, "a vector");
  TieredVector vector(rank.tiers, Tier::disk, Tier::host, DType::f32, "a vector", store);
  vector.begin(Access::write);
  for (std::size_t b = 0; b < 8; ++b) rank.stream->zero(vector.block(b));
  vector.end();
  CHECK(rank.plan.window(Tier::disk, Tier::host) == 5);
  CHECK(rank.plan.window(Tier::disk, Tier::device) == 3);
  std::atomic<int> came = 0;
  rank.disk.before_read = [&](std::size_t count, off_t) {
    ++came;
    return static_cast<ssize_t>(count);
  };
  Gate gate;
  rank.disk.before_write = gate.at();
  vector.begin(Access::update);
  CHECK(eventually([&] { return came == 2; }));
  vector.block(0);
  CHECK(eventually([&] { return came == 3; }));
  vector.block(1);  // block 0 goes, and does not arrive; blocks 3 and 4 have slots of their own
  vector.block(2);
  CHECK(eventually([&] { return came == 5 && gate.came == 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(3));
  CHECK(came == 5);
  gate.open = true;
  for (std::size_t b = 3; b < 8; ++b) vector.block(b);
  vector.end();
  CHECK(came == 8);
  CHECK(gate.came == 8);
}

TEST_CASE("TieredVector: while a block is used only the next one is fetched")
{
  Walked walked(Tier::disk, Tier::host, 6);
  std::atomic<int> came = 0;
  walked.rank.disk.before_read = [&](std::size_t count, off_t) {
    ++came;
    return static_cast<ssize_t>(count);
  };
  walked.vector->begin(Access::read);
  for (int b = 0; b < 6; ++b) {
    walked.vector->block(static_cast<std::size_t>(b));
    const int expected = std::min(b + 2, 6);
    CHECK(eventually([&] { return came == expected; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    CHECK(came == expected);
  }
  walked.vector->end();
}

TEST_CASE("TieredVector: a block is stored while the next one is used")
{
  Walked walked(Tier::disk, Tier::host, 6);
  const Tensor after = walked.content(1);
  Gate gate;
  walked.rank.disk.before_write = gate.at();
  const auto change = [&](std::size_t b) {
    walked.rank.stream->copy(walked.vector->block(b), after.slice(walked.rank.plan.blocks[b]));
  };
  walked.vector->begin(Access::update);
  change(0);
  CHECK(gate.came == 0);
  change(1);  // block 0 goes, and does not arrive
  CHECK(eventually([&] { return gate.came == 1; }));
  gate.open = true;
  for (std::size_t b = 2; b < 6; ++b) change(b);
  walked.vector->end();
  CHECK(gate.came == 6);
  CHECK(walked.rank.different(*walked.store, after) == 0);
}

TEST_CASE("TieredVector: a slot is not reused before its block has been stored")
{
  for (const Access access : {Access::update, Access::write}) {
    Walked walked(Tier::disk, Tier::host, 6);
    const Tensor after = walked.content(1);
    Gate gate;
    walked.rank.disk.before_write = gate.at();
    walked.rank.disk.before_read = nullptr;
    std::atomic<std::size_t> at = 0;
    std::size_t came_to = 6;
    std::thread opens([&] {  // long after the walk could have come to the fourth block
      eventually([&] { return gate.came == 1; });
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      came_to = at;
      gate.open = true;
    });
    walked.vector->begin(access);
    for (; at < 6; ++at)
      walked.rank.stream->copy(walked.vector->block(at), after.slice(walked.rank.plan.blocks[at]));
    walked.vector->end();
    opens.join();
    CHECK(came_to < 4);
    CHECK(walked.rank.different(*walked.store, after) == 0);
  }
}

TEST_CASE("TieredVector: a block out of order is an error")
{
  for (const auto& [home, used] : {std::pair(Tier::host, Tier::device), {Tier::host, Tier::host}}) {
    const auto fails = [home = home, used = used](const std::string& what, const auto& call) {
      const auto all = [&] {
        Walked walked(home, used, 4);  // blocks that are on their way go with the exception
        call(walked);
      };
      CHECK_THROWS_WITH(all(), Contains(what));
    };
    const std::string turn = "out of order";
    fails(turn, [](Walked& w) {
      w.vector->begin(Access::read);
      w.vector->block(1);
    });
    fails(turn, [](Walked& w) {
      w.vector->begin(Access::read);
      w.vector->block(0);
      w.vector->block(0);
    });
    fails(turn, [](Walked& w) {
      w.vector->begin(Access::update);
      w.vector->block(0);
      w.vector->block(2);
    });
    fails("ends before its last block", [](Walked& w) {
      w.vector->begin(Access::read);
      w.vector->block(0);
      w.vector->end();
    });
    fails("begins before the previous one has ended", [](Walked& w) {
      w.vector->begin(Access::read);
      w.vector->block(0);
      w.vector->begin(Access::read);
    });
    fails("in the middle of a walk", [](Walked& w) {
      w.vector->begin(Access::read);
      w.vector->block(0);
      w.vector->at(0);
    });
  }
}

TEST_CASE("TieredVector: single blocks, in any order, as they are now")
{
  for_all([](Walked& walked) {
    const Tensor old = walked.content(0), later = walked.content(1);
    const auto is = [&](std::size_t b, const Tensor& content) {
      return different_bits(walked.vector->at(b), content.slice(walked.rank.plan.blocks[b])) == 0;
    };
    const std::size_t last = walked.count() - 1;
    for (const std::size_t b : {last, std::size_t{0}, last / 2, last, last}) CHECK(is(b, old));
    CHECK(walked.change(Access::update, old, later));
    for (const std::size_t b : {last, last / 2, std::size_t{0}}) CHECK(is(b, later));
    CHECK(walked.change(Access::update, later, old));
    CHECK(is(0, old));
    CHECK(walked.read(old));
  });
}

TEST_CASE("TieredVector: a single block that is requested again is not fetched again")
{
  Walked walked(Tier::disk, Tier::host, 5);
  const auto comes = [&](std::size_t b) {
    const LinkBytes before = walked.rank.tiers.links().use().bytes;
    walked.vector->at(b);
    return moved(walked.rank, before)[2] > 0;
  };
  CHECK(comes(1));
  CHECK_FALSE(comes(1));
  CHECK(comes(4));  // in the same slot
  CHECK(comes(1));
  CHECK(walked.read(walked.content(0)));
  CHECK(comes(1));
}

TEST_CASE("TieredVector: a walk uses the store passed to the last show()")
{
  Walked walked(Tier::host, Tier::device, 4);
  const auto other =
      std::make_shared<BlockStore>(walked.rank.tiers, Tier::host, Category::parameters, DType::f32, "another");
  const Tensor content = walked.content(0), of_other = walked.content(5);
  walked.rank.put_all(*other, of_other);
  TieredVector vector(walked.rank.tiers, Tier::host, Tier::device, DType::f32, "shown", nullptr);
  for (const auto& [store, expected] :
       {std::pair(walked.store, &content), {other, &of_other}, {walked.store, &content}}) {
    vector.show(store);
    CHECK(different_bits(vector.at(1), expected->slice(walked.rank.plan.blocks[1])) == 0);
    vector.begin(Access::read);
    for (std::size_t b = 0; b < 4; ++b)
      CHECK(different_bits(vector.block(b), expected->slice(walked.rank.plan.blocks[b])) == 0);
    vector.end();
    CHECK(different_bits(vector.at(1), expected->slice(walked.rank.plan.blocks[1])) == 0);
  }
}

TEST_CASE("TieredVector: a disk that fails is named where its block is waited for")
{
  int last = -1;
  const auto walk = [&] {
    Walked walked(Tier::disk, Tier::host, 4);
    flip_byte(path_of_unnamed(walked.rank.folder / ""), 2 * 3 * 4096 + 5);
    walked.vector->begin(Access::read);
    for (std::size_t b = 0; b < 4; ++b) {
      walked.vector->block(b);
      last = static_cast<int>(b);
    }
  };
  CHECK_THROWS_WITH(walk(), Contains("block 2 of") && Contains("is damaged"));
  CHECK(last <= 1);
}
