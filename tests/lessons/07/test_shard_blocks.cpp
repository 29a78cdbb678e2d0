// The blocks of a rank's shards: each element is in one block, and no block crosses a border.

#include <algorithm>

#include "lessons/parallel/offload/shard_blocks.hpp"
#include "lessons/parallel/zero/bucket_shards.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/tiny_model.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

constexpr std::int64_t most = 262'144;

using Numbers = std::vector<std::size_t>;

/// All blocks, in order.
std::vector<Range> all_of(const ShardBlocks& blocks)
{
  std::vector<Range> all;
  for (std::size_t b = 0; b < blocks.count(); ++b) all.push_back(blocks[b]);
  return all;
}

}  // namespace

TEST_CASE("ShardBlocks: a shard is cut into blocks of 2^18 elements, and what is left")
{
  const auto cut = [](std::int64_t count) { return all_of(ShardBlocks({{1000, count}}, {})); };
  using Blocks = std::vector<Range>;
  CHECK(cut(1) == Blocks{{1000, 1}});
  CHECK(cut(most - 1) == Blocks{{1000, most - 1}});
  CHECK(cut(most) == Blocks{{1000, most}});
  CHECK(cut(most + 1) == Blocks{{1000, most}, {1000 + most, 1}});
  CHECK(cut(2 * most + 7) == Blocks{{1000, most}, {1000 + most, most}, {1000 + 2 * most, 7}});
}

TEST_CASE("ShardBlocks: no block belongs to two shards, though these are neighbours")
{
  const ShardBlocks blocks({{500, 10}, {510, 20}, {0, 5}}, {});
  CHECK(all_of(blocks) == std::vector<Range>{{500, 10}, {510, 20}, {0, 5}});
  CHECK(blocks.elements() == 35);
  CHECK(blocks.largest() == 20);
  for (std::size_t s = 0; s < 3; ++s) CHECK(blocks.of_shard(s) == Numbers{s});
}

TEST_CASE("ShardBlocks: a shard without elements has no blocks")
{
  const ShardBlocks blocks({{0, 0}, {7, 3}, {10, 0}, {10, most + 1}, {9, 0}}, {8, 1});
  CHECK(all_of(blocks) == std::vector<Range>{{7, 1}, {8, 1}, {9, 1}, {10, most}, {10 + most, 1}});
  CHECK(blocks.of_shard(0) == Numbers{});
  CHECK(blocks.of_shard(1) == Numbers{0, 1, 2});
  CHECK(blocks.of_shard(2) == Numbers{});
  CHECK(blocks.of_shard(3) == Numbers{3, 4});
  CHECK(blocks.of_shard(4) == Numbers{});

  const ShardBlocks none({{3, 0}}, {});
  CHECK(none.count() == 0);
  CHECK(none.elements() == 0);
  CHECK(none.largest() == 0);
}

TEST_CASE("ShardBlocks: a block is either inside or outside of the tied tensor")
{
  const std::int64_t whole = 3 * most;
  for (const Range tied : {Range{0, most + 1}, {5, 10}, {most - 1, 2}, {most, most}, {0, whole}, {whole - 1, 1}}) {
    INFO("tied = " << tied.first << " + " << tied.count);
    const ShardBlocks blocks({{0, whole}}, tied);
    std::int64_t inside = 0;
    for (std::size_t b = 0; b < blocks.count(); ++b) {
      const std::int64_t shared = intersect(blocks[b], tied).count;
      CHECK((shared == 0 || shared == blocks[b].count));
      CHECK(blocks.is_tied(b) == (shared > 0));
      CHECK(blocks[b].count <= most);
      inside += shared;
    }
    CHECK(inside == tied.count);
    CHECK(blocks.tied_elements() == tied.count);
    CHECK(blocks.elements() == whole);
  }
  CHECK(all_of(ShardBlocks({{0, 100}}, {20, 30})) == std::vector<Range>{{0, 20}, {20, 30}, {50, 50}});
  CHECK(all_of(ShardBlocks({{30, 10}}, {20, 30})) == std::vector<Range>{{30, 10}});
  CHECK(ShardBlocks({{0, 100}}, {100, 30}).tied_elements() == 0);
  CHECK_FALSE(ShardBlocks({{0, 100}}, {}).is_tied(0));
}

TEST_CASE("ShardBlocks: every element of a model is in one block of one rank, in the order of the shards")
{
  const ParameterTable tiny(tiny_config(2, 4, 32, 6)), large(tiny_config(1, 8, 256, 6));
  for (const ParameterTable* table : {&tiny, &large})
    for (const int N : {1, 2, 3, 7})
      for (const bool replicated : {false, true}) {
        INFO("N = " << N << ", elements = " << table->elements() << ", replicated = " << replicated);
        std::vector<int> owners(static_cast<std::size_t>(table->elements()));
        const std::vector<BucketShard> bucket_shards =
            make_bucket_shards(make_buckets(*table, DType::f32, 20'000), N);
        for (int r = 0; r < N; ++r) {
          const std::vector<Range> own = shards_of(r, bucket_shards);
          const ShardBlocks blocks(own, replicated ? table->entries().front().elements : Range{});
          std::size_t next = 0;
          for (std::size_t s = 0; s < own.size(); ++s) {
            std::int64_t at = own[s].first;
            for (const std::size_t number : blocks.of_shard(s)) {
              REQUIRE(number == next++);
              REQUIRE(blocks[number].first == at);
              at = blocks[number].end();
            }
            REQUIRE(at == own[s].end());
          }
          REQUIRE(next == blocks.count());
          for (const Range& block : all_of(blocks))
            for (std::int64_t i = block.first; i < block.end(); ++i) ++owners[static_cast<std::size_t>(i)];
        }
        CHECK(std::ranges::count(owners, 1) == table->elements());
      }
}
