#include <cstdint>

#include "common/base/partition.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

TEST_CASE("Range: knows its end and its members")
{
  constexpr Range range{5, 3};
  STATIC_REQUIRE(range.end() == 8);
  STATIC_REQUIRE(range.contains(5));
  STATIC_REQUIRE(range.contains(7));
  STATIC_REQUIRE_FALSE(range.contains(4));
  STATIC_REQUIRE_FALSE(range.contains(8));
  STATIC_REQUIRE_FALSE(range.empty());
  STATIC_REQUIRE(Range{}.empty());
  STATIC_REQUIRE_FALSE(Range{5, 0}.contains(5));
  STATIC_REQUIRE_FALSE(range == Range{5, 4});
  STATIC_REQUIRE_FALSE(range == Range{4, 3});
}

TEST_CASE("intersect: holds just the members of both, for all ranges within ten")
{
  std::int64_t wrong = 0;
  for (std::int64_t a = 0; a < 100; ++a) {
    for (std::int64_t b = 0; b < 100; ++b) {
      const Range left{a / 10, a % 10}, right{b / 10, b % 10};
      const Range both = intersect(left, right);
      wrong += both.count >= 0 ? 0 : 1;
      for (std::int64_t i = 0; i < 20; ++i)
        wrong += both.contains(i) == (left.contains(i) && right.contains(i)) ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("Partition: the first n mod N shards are the larger ones")
{
  constexpr Partition ten(10, 4);
  STATIC_REQUIRE(ten.elements() == 10);
  STATIC_REQUIRE(ten.shards() == 4);
  STATIC_REQUIRE(ten.shard(0) == Range{0, 3});
  STATIC_REQUIRE(ten.shard(1) == Range{3, 3});
  STATIC_REQUIRE(ten.shard(2) == Range{6, 2});
  STATIC_REQUIRE(ten.shard(3) == Range{8, 2});
}

TEST_CASE("Partition: shards follow each other, cover everything and differ by at most one")
{
  std::int64_t wrong = 0;
  for (std::int64_t n = 0; n <= 70; ++n) {
    for (std::int64_t N = 1; N <= 20; ++N) {
      const Partition partition(n, N);
      std::int64_t next = 0;
      for (std::int64_t r = 0; r < N; ++r) {
        const Range shard = partition.shard(r);
        wrong += shard.first == next ? 0 : 1;
        wrong += shard.count == n / N + (r < n % N ? 1 : 0) ? 0 : 1;
        next = shard.end();
      }
      wrong += next == n ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("Partition: owner() is the inverse of shard()")
{
  std::int64_t wrong = 0;
  for (std::int64_t n = 0; n <= 70; ++n) {
    for (std::int64_t N = 1; N <= 20; ++N) {
      const Partition partition(n, N);
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t owner = partition.owner(i);
        wrong += 0 <= owner && owner < N && partition.shard(owner).contains(i) ? 0 : 1;
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("Partition: fewer elements than shards leave the last shards empty")
{
  constexpr Partition two(2, 4);
  STATIC_REQUIRE(two.shard(0) == Range{0, 1});
  STATIC_REQUIRE(two.shard(1) == Range{1, 1});
  STATIC_REQUIRE(two.shard(2) == Range{2, 0});
  STATIC_REQUIRE(two.shard(3) == Range{2, 0});
  STATIC_REQUIRE(two.owner(1) == 1);

  constexpr Partition nothing(0, 3);
  STATIC_REQUIRE(nothing.shard(0) == Range{0, 0});
  STATIC_REQUIRE(nothing.shard(2) == Range{0, 0});
}

TEST_CASE("Partition: divides more elements than 32 bits count")
{
  constexpr Partition parameters(175'000'000'001, 1024);
  STATIC_REQUIRE(parameters.shard(0) == Range{0, 170'898'438});
  STATIC_REQUIRE(parameters.shard(1023).end() == 175'000'000'001);
  STATIC_REQUIRE(parameters.owner(175'000'000'000) == 1023);
  STATIC_REQUIRE(parameters.owner(parameters.shard(700).first) == 700);
  STATIC_REQUIRE(parameters.owner(parameters.shard(700).first - 1) == 699);
}
