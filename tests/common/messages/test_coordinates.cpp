// The coordinates of a rank on a mesh.

#include <vector>

#include "tests/catch.hpp"
#include "tests/common/messages/axes.hpp"

using namespace rankwise;
using namespace rankwise::testing;
using Coordinates = std::vector<int>;

TEST_CASE("coordinates_of: a few ranks of a few meshes")
{
  const std::vector<Axis> cube{{"pp", 2}, {"dp", 2}, {"tp", 2}};
  CHECK(coordinates_of(cube, 0) == Coordinates{0, 0, 0});
  CHECK(coordinates_of(cube, 1) == Coordinates{0, 0, 1});
  CHECK(coordinates_of(cube, 2) == Coordinates{0, 1, 0});
  CHECK(coordinates_of(cube, 6) == Coordinates{1, 1, 0});
  const std::vector<Axis> box{{"a", 2}, {"b", 3}, {"c", 4}};
  CHECK(coordinates_of(box, 4) == Coordinates{0, 1, 0});
  CHECK(coordinates_of(box, 12) == Coordinates{1, 0, 0});
  CHECK(coordinates_of(box, 23) == Coordinates{1, 2, 3});
  CHECK(coordinates_of({{"world", 5}}, 3) == Coordinates{3});
  CHECK(coordinates_of({{"a", 2}, {"b", 2}, {"c", 2}, {"d", 3}}, 10) == Coordinates{0, 1, 1, 1});
}

TEST_CASE("coordinates_of: on every mesh of up to 24 ranks the last coordinate counts up first")
{
  for_each_point_of_all([](const std::vector<Axis>& axes, int rank, const Coordinates& coordinates) {
    REQUIRE(coordinates_of(axes, rank) == coordinates);
  });
}
