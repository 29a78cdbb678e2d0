#include "lessons/frame/instruments/elastic.hpp"
#include "tests/catch.hpp"

namespace rankwise {
namespace {

using Ranges = std::vector<std::vector<Range>>;
using Moves = std::vector<Move>;

TEST_CASE("plan_moves: a rank takes what it has itself, and the rest from the lowest rank that has it")
{
  // Three of four ranks are left: 10 elements each, with a copy of the shard of the rank before. Rank 2 has died.
  const Ranges kept{{{0, 10}, {30, 10}}, {{10, 10}, {0, 10}}, {{30, 10}, {20, 10}}};
  const Ranges wanted{{{0, 14}}, {{14, 13}}, {{27, 13}}};
  CHECK(
      plan_moves(kept, wanted) ==
      Moves{{0, 0, {0, 10}}, {1, 0, {10, 4}}, {1, 1, {14, 6}}, {2, 1, {20, 7}}, {2, 2, {27, 3}}, {2, 2, {30, 10}}});
}

TEST_CASE("plan_moves: every rank keeps what all ranks have")
{
  const Ranges all{{{0, 5}}, {{0, 5}}};
  CHECK(plan_moves(all, all) == Moves{{0, 0, {0, 5}}, {1, 1, {0, 5}}});
}

TEST_CASE("plan_moves: elements that no rank has are lost, also a single one; empty shards need nothing")
{
  CHECK(plan_moves({{{0, 4}}, {{5, 3}}}, {{{0, 8}}, {}}) == std::nullopt);
  CHECK(plan_moves({{{0, 4}}, {{4, 3}}}, {{{0, 8}}, {}}) == std::nullopt);
  CHECK(plan_moves({{}, {}}, {{{3, 0}}, {}}) == Moves{});
}

}  // namespace
}  // namespace rankwise
