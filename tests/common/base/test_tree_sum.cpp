#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "common/base/tree_sum.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

/// Floats of very different size and both signs, so that almost every other order of adding gives other bits.
std::vector<float> wild_floats(std::int64_t count, std::uint32_t seed)
{
  std::mt19937 random(seed);
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto exponent = static_cast<int>(random() % 20);
    values.push_back(std::ldexp(static_cast<float>(random()) - 2147483648.0f, exponent - 31));
  }
  return values;
}

float tree_of(const std::vector<float>& values, std::int64_t first, std::int64_t count)
{
  return tree_sum(first, count, [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
}

bool same_bits(float a, float b)
{
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

/// The sum of leaves written as its tree, with parentheses.
struct Formula {
  std::string text;
  friend Formula operator+(const Formula& a, const Formula& b) { return {"(" + a.text + "+" + b.text + ")"}; }
};

std::string tree_text(std::int64_t first, std::int64_t count)
{
  return tree_sum(first, count, [](std::int64_t i) { return Formula{std::to_string(i)}; }).text;
}

}  // namespace

TEST_CASE("tree_sum: the trees of one to nine leaves are the documented ones")
{
  CHECK(tree_text(0, 1) == "0");
  CHECK(tree_text(0, 2) == "(0+1)");
  CHECK(tree_text(0, 3) == "((0+1)+2)");
  CHECK(tree_text(0, 4) == "((0+1)+(2+3))");
  CHECK(tree_text(0, 5) == "(((0+1)+(2+3))+4)");
  CHECK(tree_text(0, 6) == "(((0+1)+(2+3))+(4+5))");
  CHECK(tree_text(0, 7) == "(((0+1)+(2+3))+((4+5)+6))");
  CHECK(tree_text(0, 8) == "(((0+1)+(2+3))+((4+5)+(6+7)))");
  CHECK(tree_text(0, 9) == "((((0+1)+(2+3))+((4+5)+(6+7)))+8)");
  CHECK(tree_text(12, 4) == "((12+13)+(14+15))");
}

TEST_CASE("tree_sum: visits each leaf once and in order")
{
  for (const std::int64_t count : {1, 2, 3, 7, 8, 33, 100, 256}) {
    std::vector<std::int64_t> visited;
    const std::int64_t sum = tree_sum(5, count, [&](std::int64_t i) {
      visited.push_back(i);
      return i;
    });
    CHECK(sum == count * 5 + count * (count - 1) / 2);
    REQUIRE(visited.size() == static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < visited.size(); ++i) REQUIRE(visited[i] == 5 + static_cast<std::int64_t>(i));
  }
}

TEST_CASE("tree_sum: aligned power-of-two runs, added as a tree of runs, give the bits of the whole")
{
  for (std::int64_t count = 1; count <= 1024; count *= 2) {
    const std::vector<float> values = wild_floats(count, static_cast<std::uint32_t>(count));
    const float whole = tree_of(values, 0, count);
    for (std::int64_t run = 1; run <= count; run *= 2) {
      const float of_runs = tree_sum(0, count / run, [&](std::int64_t i) { return tree_of(values, i * run, run); });
      CHECK(same_bits(of_runs, whole));
    }
  }
}

TEST_CASE(
    "tree_sum: runs of different length, merged with their neighbours in any order, give the bits of the whole")
{
  constexpr std::int64_t count = 128;
  std::mt19937 random(11);
  for (std::uint32_t trial = 0; trial < 200; ++trial) {
    const std::vector<float> values = wild_floats(count, trial);
    // A node is either added by one caller, or divided among two who do not know of each other.
    const auto split = [&](auto&& self, std::int64_t first, std::int64_t length) -> float {
      if (length == 1 || random() % 3 == 0) return tree_of(values, first, length);
      if (random() % 2 == 0) {
        const float left = self(self, first, length / 2);
        return left + self(self, first + length / 2, length / 2);
      }
      const float right = self(self, first + length / 2, length / 2);
      return self(self, first, length / 2) + right;
    };
    REQUIRE(same_bits(split(split, 0, count), tree_of(values, 0, count)));
  }
}

TEST_CASE("tree_sum: aligned runs are subtrees of counts that are no power of two, too")
{
  for (const std::int64_t count : {3, 5, 6, 7, 12, 13, 96, 100, 1000}) {
    const std::vector<float> values = wild_floats(count, static_cast<std::uint32_t>(count));
    const float whole = tree_of(values, 0, count);
    for (std::int64_t run = 1; run <= count; run *= 2) {
      if (count % run != 0) continue;
      const float of_runs = tree_sum(0, count / run, [&](std::int64_t i) { return tree_of(values, i * run, run); });
      CHECK(same_bits(of_runs, whole));
    }
  }
}

TEST_CASE("aligned_runs: powers of two, aligned, in order, and at most two of each length")
{
  for (std::int64_t first = 0; first < 40; ++first)
    for (std::int64_t count = 0; count < 40; ++count) {
      INFO("[" << first << ", " << first + count << ")");
      std::int64_t next = first;
      std::map<std::int64_t, int> of_length;
      for (const Range run : aligned_runs({first, count})) {
        REQUIRE(run.first == next);
        REQUIRE(std::has_single_bit(static_cast<std::uint64_t>(run.count)));
        REQUIRE(run.first % run.count == 0);
        REQUIRE(++of_length[run.count] <= 2);
        next = run.end();
      }
      REQUIRE(next == first + count);
    }
}

TEST_CASE("tree_over_runs: callers that each sum the runs of their leaves have the bits of one caller")
{
  for (std::int64_t count = 1; count <= 40; ++count) {
    const std::vector<float> values = wild_floats(count, static_cast<std::uint32_t>(count));
    for (std::int64_t callers = 1; callers <= std::min<std::int64_t>(count, 9); ++callers) {
      std::vector<Range> runs;
      for (std::int64_t r = 0; r < callers; ++r)
        for (const Range run : aligned_runs(Partition(count, callers).shard(r))) runs.push_back(run);
      std::vector<float> sums;
      for (const Range run : runs) sums.push_back(tree_of(values, run.first, run.count));
      tree_over_runs(runs, [&](std::size_t i, std::size_t j) { sums[i] += sums[j]; });
      INFO(count << " leaves of " << callers);
      REQUIRE(same_bits(sums[0], tree_of(values, 0, count)));
    }
  }
}

TEST_CASE("tree_sum: with these floats the tree and a sequential sum have different bits")
{
  int different = 0;
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    const std::vector<float> values = wild_floats(64, seed);
    float one_by_one = 0;
    for (const float value : values) one_by_one += value;
    different += same_bits(one_by_one, tree_of(values, 0, 64)) ? 0 : 1;
  }
  CHECK(different > 25);
}

TEST_CASE("tree_sum: its error grows with the depth of the tree, not with the number of leaves")
{
  // 2^20 equal terms: at each level both halves are equal, so doubling is exact. One by one the sum is 1 % off.
  constexpr std::int64_t count = 1 << 20;
  CHECK(tree_sum(0, count, [](std::int64_t) { return 0.1f; }) == std::ldexp(0.1f, 20));
}

TEST_CASE("Lanes: every lane is the tree of its own leaves")
{
  constexpr int W = 5;
  constexpr std::int64_t count = 37;
  const std::vector<float> values = wild_floats(W * count, 3);
  const auto lanes = tree_sum(0, count, [&](std::int64_t i) {
    Lanes<float, W> leaf;
    for (int w = 0; w < W; ++w) leaf.at[static_cast<std::size_t>(w)] = values[static_cast<std::size_t>(i * W + w)];
    return leaf;
  });
  for (int w = 0; w < W; ++w) {
    const float alone =
        tree_sum(0, count, [&](std::int64_t i) { return values[static_cast<std::size_t>(i * W + w)]; });
    CHECK(same_bits(lanes.at[static_cast<std::size_t>(w)], alone));
  }
}

TEST_CASE("Lanes: start at zero and are aligned to 64 bytes")
{
  STATIC_REQUIRE(alignof(Lanes<float, 16>) == 64);
  const Lanes<double, 3> zero;
  for (const double lane : zero.at) CHECK(lane == 0);
}
