// The buckets of lesson 03: every gradient once, in the order of a backward pass, with the requested size.

#include "lessons/parallel/zero/buckets.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/tiny_model.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

// Units: embedding 704 elements, then (4,288 of attention, 8,416 of an MLP) twice, head 64.
const ParameterTable table(tiny_config(2, 4, 32, 6));

std::int64_t size_of_unit(std::int64_t unit)
{
  return table.unit_elements(static_cast<int>(unit)).count;
}

}  // namespace

TEST_CASE("make_buckets: all units once, from the last one to the first, and their elements")
{
  for (const std::int64_t bytes : {1, 4 * 64, 4 * 64 + 1, 20'000, 33'920, 60'000, 1'000'000'000}) {
    INFO("bytes = " << bytes);
    std::int64_t unit = table.units().end(), element = table.elements();
    for (const Bucket& bucket : make_buckets(table, DType::f32, bytes)) {
      REQUIRE(bucket.units.count > 0);
      CHECK(bucket.units.end() == unit);
      CHECK(bucket.elements.end() == element);
      std::int64_t expected = 0;
      for (std::int64_t u = bucket.units.first; u < bucket.units.end(); ++u) expected += size_of_unit(u);
      CHECK(bucket.elements.count == expected);
      unit = bucket.units.first;
      element = bucket.elements.first;
    }
    CHECK(unit == 0);
    CHECK(element == 0);
  }
}

TEST_CASE("make_buckets: a bucket is full with the unit that brings it to the bytes that were asked for")
{
  for (const DType type : {DType::f32, DType::f64})
    for (const std::int64_t bytes : {1, 4 * 64, 4 * 64 + 1, 20'000, 33'920, 60'000}) {
      INFO("bytes = " << bytes);
      const std::vector<Bucket> buckets = make_buckets(table, type, bytes);
      for (std::size_t i = 0; i < buckets.size(); ++i) {
        const std::int64_t all = buckets[i].elements.count * bytes_of(type);
        const std::int64_t without_the_last_unit = all - size_of_unit(buckets[i].units.first) * bytes_of(type);
        CHECK(without_the_last_unit < bytes);
        if (i + 1 < buckets.size()) CHECK(all >= bytes);
      }
    }
}

TEST_CASE("make_buckets: figures")
{
  CHECK(make_buckets(table, DType::f32, 1).size() == 6);              // a unit each
  CHECK(make_buckets(table, DType::f32, 1'000'000'000).size() == 1);  // all of them
  const std::vector<Bucket> buckets = make_buckets(table, DType::f32, 33'920);
  REQUIRE(buckets.size() == 3);
  CHECK(buckets[0].units == Range{4, 2});  // head and the last MLP: 33,920 bytes
  CHECK(buckets[1].units == Range{2, 2});
  CHECK(buckets[2].units == Range{0, 2});  // what is left
}

TEST_CASE("make_buckets: of a part of a model")
{
  const ParameterTable part(tiny_config(2, 4, 32, 6), {}, {1, 3});
  const std::vector<Bucket> buckets = make_buckets(part, DType::f32, 40'000);
  REQUIRE(buckets.size() == 2);
  CHECK(buckets[0].units == Range{2, 2});
  CHECK(buckets[1].units == Range{1, 1});
  CHECK(buckets[1].elements.first == 0);
  CHECK(buckets[0].elements.end() == part.elements());
}

TEST_CASE("check_bucket: an empty bucket is refused")
{
  REQUIRE_NOTHROW(check_bucket(1));
  REQUIRE_THROWS_WITH(check_bucket(0), Contains("--bucket=0"));
}
