// The shard map of lesson 04: every element has one owner, the same as in the collectives.

#include <algorithm>

#include "lessons/parallel/zero/bucket_shards.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/tiny_model.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

// Units: embedding 704 elements, then (4,288 of attention, 8,416 of an MLP) twice, head 64.
const ParameterTable table(tiny_config(2, 4, 32, 6));

}  // namespace

TEST_CASE("make_bucket_shards: every element of the model has one owner")
{
  for (const std::int64_t bytes : {1, 4 * 64 + 1, 20'000, 33'920, 1'000'000'000})
    for (const int N : {1, 2, 3, 4, 5, 7, 8, 100}) {
      INFO("bytes = " << bytes << ", N = " << N);
      std::vector<int> owners(static_cast<std::size_t>(table.elements()));
      for (const BucketShard& shard : make_bucket_shards(make_buckets(table, DType::f32, bytes), N)) {
        REQUIRE(0 <= shard.owner);
        REQUIRE(shard.owner < N);
        REQUIRE(intersect(shard.elements, {0, table.elements()}) == shard.elements);
        for (std::int64_t i = shard.elements.first; i < shard.elements.end(); ++i)
          ++owners[static_cast<std::size_t>(i)];
      }
      CHECK(std::ranges::count(owners, 1) == table.elements());
    }
}

TEST_CASE("make_bucket_shards: bucket by bucket, by rank, as a collective of the bucket's elements cuts them")
{
  for (const int N : {1, 2, 3, 4, 8, 100}) {
    INFO("N = " << N);
    const std::vector<Bucket> buckets = make_buckets(table, DType::f32, 20'000);
    const std::vector<BucketShard> bucket_shards = make_bucket_shards(buckets, N);
    REQUIRE(bucket_shards.size() == buckets.size() * static_cast<std::size_t>(N));
    for (std::size_t b = 0; b < buckets.size(); ++b)
      for (int r = 0; r < N; ++r) {
        const BucketShard& shard = bucket_shards[b * static_cast<std::size_t>(N) + static_cast<std::size_t>(r)];
        const Range part = Partition(buckets[b].elements.count, N).shard(r);
        CHECK(shard.owner == r);
        CHECK(shard.elements.count == part.count);
        CHECK(shard.elements.first == buckets[b].elements.first + part.first);
      }
  }
}

TEST_CASE("make_bucket_shards: figures; shards begin and end in the middle of tensors")
{
  // Bucket 0: head and the last MLP, elements 17,696 .. 26,176; bucket 1 before it, bucket 2 what is left.
  const std::vector<BucketShard> bucket_shards = make_bucket_shards(make_buckets(table, DType::f32, 33'920), 3);
  REQUIRE(bucket_shards.size() == 9);
  CHECK(bucket_shards[0].elements == Range{17'696, 2'827});
  CHECK(bucket_shards[1].elements == Range{20'523, 2'827});
  CHECK(bucket_shards[2].elements == Range{23'350, 2'826});
  CHECK(bucket_shards[6].elements.first == 0);
  CHECK(bucket_shards[5].elements.end() == 17'696);
}

TEST_CASE("make_bucket_shards: more ranks than elements leave the last ones without")
{
  const std::vector<BucketShard> bucket_shards = make_bucket_shards({{{0, 1}, {10, 3}}}, 5);
  REQUIRE(bucket_shards.size() == 5);
  for (int r = 0; r < 5; ++r) CHECK(bucket_shards[static_cast<std::size_t>(r)].elements.count == (r < 3 ? 1 : 0));
  CHECK(bucket_shards[2].elements.first == 12);
}

TEST_CASE("shards_of: those of one rank, a bucket's each")
{
  const std::vector<Bucket> buckets = make_buckets(table, DType::f32, 1);
  const std::vector<BucketShard> bucket_shards = make_bucket_shards(buckets, 3);
  std::int64_t all = 0;
  for (int r = 0; r < 3; ++r) {
    const std::vector<Range> own = shards_of(r, bucket_shards);
    REQUIRE(own.size() == buckets.size());
    for (std::size_t b = 0; b < buckets.size(); ++b)
      CHECK(own[b] == bucket_shards[3 * b + static_cast<std::size_t>(r)].elements);
    all += elements_of(own);
  }
  CHECK(all == table.elements());
}
