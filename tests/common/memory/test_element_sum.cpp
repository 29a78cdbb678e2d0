#include <algorithm>
#include <span>

#include "common/base/error.hpp"
#include "common/base/tree_sum.hpp"
#include "common/memory/element_sum.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

/// Vector s of several, of values that round when they are added.
template <class T>
std::vector<T> vector_of(int s, std::int64_t n)
{
  std::vector<T> values;
  for (std::int64_t i = 0; i < n; ++i)
    values.push_back(static_cast<T>(static_cast<float>(1 + s) * 100.0f / static_cast<float>(3 + i)));
  return values;
}

template <class T, class Sum>
void compare_with_tree(std::int64_t n, int sources)
{
  std::vector<std::vector<T>> vectors;
  std::vector<const void*> pointers;
  for (int s = 0; s < sources; ++s) vectors.push_back(vector_of<T>(s, n));
  for (const std::vector<T>& v : vectors) pointers.push_back(v.data());
  std::vector<T> expected;
  for (std::int64_t i = 0; i < n; ++i)
    expected.push_back(static_cast<T>(tree_sum(0, sources, [&](std::int64_t s) {
      return static_cast<Sum>(vectors[static_cast<std::size_t>(s)][static_cast<std::size_t>(i)]);
    })));
  sum_elements(dtype_of<T>(), vectors[0].data(), pointers, n);  // into one of the sources
  REQUIRE(std::ranges::equal(std::as_bytes(std::span(vectors[0])), std::as_bytes(std::span(expected))));
}

}  // namespace

TEST_CASE("sum_elements: the order of tree_sum(), for any number of sources")
{
  for (int sources = 1; sources <= 9; ++sources)
    for (const std::int64_t n : {0, 1, 63, 64, 65, 1001}) {
      compare_with_tree<float, float>(n, sources);
      compare_with_tree<double, double>(n, sources);
      compare_with_tree<bf16, float>(n, sources);  // rounded once
      compare_with_tree<std::int32_t, std::int32_t>(n, sources);
      compare_with_tree<std::int64_t, std::int64_t>(n, sources);
    }
}

TEST_CASE("add_elements: adds in place, bf16 in f32")
{
  std::vector<bf16> to = vector_of<bf16>(1, 100);
  const std::vector<bf16> before = to, from = vector_of<bf16>(4, 100);
  add_elements(DType::bf16, to.data(), from.data(), 100);
  for (std::size_t i = 0; i < 100; ++i)
    REQUIRE(to[i].bits == bf16(static_cast<float>(before[i]) + static_cast<float>(from[i])).bits);
}

TEST_CASE("check_summable: all types but bytes")
{
  for (const DType type : {DType::f32, DType::bf16, DType::f64, DType::i32, DType::i64})
    REQUIRE_NOTHROW(check_summable(type));
  std::vector<std::uint8_t> bytes(4);
  REQUIRE_THROWS_WITH(add_elements(DType::u8, bytes.data(), bytes.data(), 4), Contains("u8"));
}
