// The rank at given coordinates of a mesh, and the ranks along one of its axes.

#include <string>
#include <vector>

#include "tests/catch.hpp"
#include "tests/common/messages/axes.hpp"

using namespace rankwise;
using namespace rankwise::testing;
using Ranks = std::vector<int>;

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

TEST_CASE("line_of: a few lines of a few meshes")
{
  const std::vector<Axis> cube{{"pp", 2}, {"dp", 2}, {"tp", 2}}, box{{"a", 2}, {"b", 3}, {"c", 4}};
  CHECK(line_of(cube, 6, "tp") == Ranks{6, 7});
  CHECK(line_of(cube, 6, "dp") == Ranks{4, 6});
  CHECK(line_of(cube, 6, "pp") == Ranks{2, 6});
  CHECK(line_of(box, 17, "a") == Ranks{5, 17});
  CHECK(line_of(box, 17, "b") == Ranks{13, 17, 21});
  CHECK(line_of(box, 17, "c") == Ranks{16, 17, 18, 19});
  CHECK(line_of({{"world", 5}}, 3, "world") == Ranks{0, 1, 2, 3, 4});
}

TEST_CASE("line_of: an axis that the mesh does not have is an error")
{
  CHECK_THROWS_WITH(line_of({{"pp", 2}, {"tp", 3}}, 4, "dp"), Contains("the mesh has no axis dp"));
}

TEST_CASE("line_of: on every mesh of up to 24 ranks, the ranks that differ in one coordinate at most, in its order")
{
  for_each_point_of_all([](const std::vector<Axis>& axes, int rank, const std::vector<int>& coordinates) {
    for (std::size_t a = 0; a < axes.size(); ++a) {
      Ranks expected;
      std::vector<int> other = coordinates;
      for (other[a] = 0; other[a] < axes[a].size; ++other[a]) {
        int number = 0;  // of the rank with these coordinates
        for (std::size_t b = 0; b < axes.size(); ++b) number = number * axes[b].size + other[b];
        expected.push_back(number);
      }
      REQUIRE(line_of(axes, rank, axes[a].name) == expected);
    }
  });
}
