// The rank at given coordinates of a mesh.

#include <vector>

#include <catch2/catch.hpp>

#include "tests/common/messages/axes.hpp"

using namespace rankwise;
using namespace rankwise::testing;

TEST_CASE("rank_at: a few places of a few meshes")
{
  const std::vector<Axis> cube{{"pp", 2}, {"dp", 2}, {"tp", 2}};
  CHECK(rank_at(cube, {0, 0, 1}) == 1);
  CHECK(rank_at(cube, {0, 1, 0}) == 2);
  CHECK(rank_at(cube, {1, 1, 0}) == 6);
  const std::vector<Axis> box{{"a", 2}, {"b", 3}, {"c", 4}};
  CHECK(rank_at(box, {0, 0, 3}) == 3);
  CHECK(rank_at(box, {0, 2, 0}) == 8);
  CHECK(rank_at(box, {1, 0, 0}) == 12);
  CHECK(rank_at(box, {1, 2, 3}) == 23);
  CHECK(rank_at({{"world", 5}}, {3}) == 3);
  CHECK(rank_at({{"a", 2}, {"b", 2}, {"c", 2}, {"d", 3}}, {0, 1, 1, 1}) == 10);
}

TEST_CASE("rank_at: on every mesh of up to 24 ranks the ranks are counted up as their coordinates are")
{
  for_each_point_of_all([](const std::vector<Axis>& axes, int rank, const std::vector<int>& coordinates) {
    REQUIRE(rank_at(axes, coordinates) == rank);
  });
}
